"""What a module computes.

A block of a model is recognized by its formula and not by the name of its class: Hugging Face alone has hundreds of
classes with the feed-forward block of LLaMA, and the next release may change what one of them computes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Function(NamedTuple):
    """A function that ``forward`` calls with a tensor and keywords, as they are written."""

    name: str
    keywords: tuple[str, ...]
    values: tuple[str, ...] = ()  # the other arguments without names

    def __str__(self) -> str:
        return self.name


class Method(NamedTuple):
    """A method of the tensor, without arguments: ``x.relu()``."""

    name: str

    def __str__(self) -> str:
        return self.name


class Gate(NamedTuple):
    """``activation(gate(x)) * up(x)``: three steps, or what they call."""

    gate: Any
    activation: Any
    up: Any
    before_up: int  # how many of the other two are called before up

    def __call__(self, input: Any) -> Any:
        """As the original forward does."""
        gate, activation, up, before_up = self
        other = up(input) if before_up == 0 else None
        gated = gate(input)
        other = up(input) if before_up == 1 else other
        gated = activation(gated)
        other = up(input) if before_up == 2 else other
        return gated * other


_FUNCTIONS = {"chunk": torch.chunk, "split": torch.split}  # others may put something else in their place


class Halves(NamedTuple):
    """How the two halves of the last dimension are taken: what calls it gets them as from the original forward."""

    kind: str = "chunk"  # or "split", by a size or by a list of two, or "slices"
    size: int | None = None  # of the first half; None where it is half of what there is
    sizes: bool = False  # split by a list
    function: Any = None  # torch.chunk or torch.split, or its name; None for the methods of the tensor

    def __call__(self, input: Any) -> Any:
        """The halves; what they are of may have another size."""
        size = input.shape[-1] // 2 if self.size is None and self.kind != "chunk" else self.size
        if self.kind == "slices":
            return input[..., :size], input[..., size:]
        argument = 2 if self.kind == "chunk" else [size, size] if self.sizes else size
        if self.function is not None:
            return self.function(input, argument, dim=-1)
        return input.chunk(2, dim=-1) if self.kind == "chunk" else input.split(argument, dim=-1)

    def is_known(self) -> bool:
        """Whether nobody has put something else in the place of the function, or of the number that the size is."""
        is_number = self.size is None or type(self.size) is int
        return is_number and (self.function is None or self.function is _FUNCTIONS[self.kind])

    def __str__(self) -> str:
        size = "n" if self.size is None else self.size
        if self.kind == "slices":
            return f"[..., :{size}], [..., {size}:]"
        return f".{self.kind}({2 if self.kind == 'chunk' else [size, size] if self.sizes else size}, -1)"


class PackedGate(NamedTuple):
    """``activation(gate) * up`` of the two halves of the last dimension."""

    activation: Any
    gate_last: bool
    halves: Halves = Halves()

    def __call__(self, input: Any) -> Any:
        """As the original forward does."""
        first, second = self.halves(input)
        return first * self.activation(second) if self.gate_last else self.activation(first) * second


class Scaled(NamedTuple):
    """``x * factor``, of a number or of the name of an attribute of the module, or of its value."""

    factor: Any
    is_first: bool = False  # factor * x

    def __call__(self, input: Any) -> Any:
        """As the original forward does."""
        return self.factor * input if self.is_first else input * self.factor

    def __str__(self) -> str:
        return str(self.factor)


class Inner(NamedTuple):
    """A step within a Sequential, or within a module that is converted itself."""

    owner: str
    step: Any

    def __str__(self) -> str:
        return self.named(self.step)

    def named(self, step: Any) -> str:
        """The name of a step, or of a part of it, in the outer module."""
        return str(step) if isinstance(step, (Function, Method)) else f"{self.owner}.{step}"


# What is done to a tensor: an attribute of the module is called, as in "act" or "layers[0]", or one of the above.
Step = str | Function | Method | Gate | PackedGate | Scaled


class Condition(NamedTuple):
    """What a function around the class says to some arguments; ``answer`` is None for a builtin, that it must be."""

    function: str
    arguments: tuple[Any, ...] = ()
    answer: bool | None = None


class Formula(NamedTuple):
    """What a module computes: one step after another. It has names only: what they mean is looked up in each call."""

    steps: tuple[Step, ...]
    attributes: tuple[tuple[str, Any], ...] = ()  # of the module, that the formula holds for
    cast: bool = False  # there is a cast between the steps, which does nothing where all have one dtype
    lengths: tuple[tuple[str, int], ...] = ()  # of the lists of modules that there are loops over
    present: tuple[str, ...] = ()  # attributes that are not None
    conditions: tuple[Condition, ...] = ()
    takes_more: bool = False  # arguments, of calls with which it says nothing

    def __str__(self) -> str:
        text, where = "x", ""
        for step in self.steps:
            if isinstance(step, Gate):
                text = f"{step.activation}({step.gate}({text})) * {step.up}({text})"
            elif isinstance(step, PackedGate):
                gate, up = ("b", "a") if step.gate_last else ("a", "b")
                where = f", a, b = {text}{step.halves}"
                text = f"{step.activation}({gate}) * {up}"
            elif isinstance(step, Scaled):
                text = f"{step} * {text}" if step.is_first else f"{text} * {step}"
            else:
                text = f"{step}({text})"
        return text + where


class Unreadable(Exception):  # noqa: N818  (no error: the reason why a module is left)
    """The formula of a module cannot be read; the message is a clause that says why."""
