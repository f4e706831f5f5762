"""fastops.nn.convert on modules made up at random, against the same modules unconverted.

A module is written as source, with closures, mangled names, gates, hooks, parametrizations, wrappers and classes that
are particular, and it is made twice, each in a namespace of its own. One of the two is converted. Then both are called,
changed and called again, in the same way, and everything must be as if nothing had been converted: values, gradients,
buffers, random numbers, state dicts, errors, and which hooks and patched functions were called, in which order.
"""

from __future__ import annotations

import contextlib
import copy
import linecache
import random
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import fastops
from fuzz.cases import category
from fuzz.convert_changes import CHANGES, adapted
from fuzz.convert_prelude import PRELUDE
from fuzz.convert_sources import Source, write


def case(seed: int) -> None:
    """Raises an AssertionError with the source where a converted module differs."""
    source = write(random.Random(seed))
    chance = random.Random(seed + 1)
    twins = [Twin(source, f"fuzz_{name}_{seed}", seed) for name in ("original", "converted")]
    original, converted = twins
    done: list[str] = []
    try:
        report = original.unmoved(lambda: fastops.nn.convert(converted.model), converted)
        replaced = [row.module for row in report.replaced]
        category(f"{source.kind}: {'converted' if replaced else 'left'}")
        compare(twins, done)
        for _ in range(chance.randrange(4)):
            change_seed = chance.randrange(2**31)
            name = chance.choice(list(CHANGES))
            done.append(name)
            with contextlib.ExitStack() as until_called:
                for twin in twins:
                    CHANGES[name](twin, random.Random(change_seed), until_called)
                compare(twins, done)
        if chance.random() < 0.3:
            done.append("deepcopy")
            with contextlib.suppress(RuntimeError):  # pruned layers keep a tensor that cannot be copied
                for twin in twins:
                    twin.model = copy.deepcopy(twin.model)
            compare(twins, done)
        elif not any(name.startswith("class") for name in done):
            done.append("revert")
            report.revert()
            compare(twins, done)
    except Exception as error:
        written = source.text.removeprefix(PRELUDE)
        raise AssertionError(f"{type(error).__name__}: {error}\nafter {done}:\n{written}") from error


class Twin:
    """One of two modules that should be equal, and what was noted while it was called."""

    def __init__(self, source: Source, name: str, seed: int) -> None:
        self.notes: list[str] = []
        self.source = source
        module = types.ModuleType(name)
        self.names: dict[str, Any] = module.__dict__
        self.names.update(note=self.notes.append, adapted=adapted)
        filename = f"<{name}>"
        linecache.cache[filename] = (len(source.text), None, source.text.splitlines(True), filename)
        torch.manual_seed(seed)
        exec(compile(source.text, filename, "exec"), self.names)
        self.model: nn.Module = self.names["make"]().double()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
        self.model.train(source.training)
        self.notes.clear()

    def unmoved(self, function: Callable[[], Any], converted: Twin) -> Any:
        """The result of a function that changes no state: no random numbers, no calls, no buffers."""
        torch.manual_seed(7)
        before = torch.get_rng_state()
        result = function()
        assert torch.equal(before, torch.get_rng_state()), "convert draws random numbers"
        assert not converted.notes, f"convert calls {converted.notes}"
        equal(dict(self.model.state_dict()), dict(converted.model.state_dict()), "state dict after convert")
        return result

    def run(self) -> dict[str, Any]:
        """Everything that a call does."""
        torch.manual_seed(11)
        self.notes.clear()
        x = torch.randn(*self.source.shape, dtype=torch.float64, requires_grad=True)
        results: dict[str, Any] = {}
        try:
            arguments, keywords = ((), {"x": x}) if self.source.by_keyword else ((x,), {})
            value = self.model(*arguments, **keywords)
            results["value"] = value
            self.model.zero_grad()
            if isinstance(value, Tensor) and value.requires_grad:
                (
                    value * torch.linspace(-1, 1, max(value.numel(), 1)).to(value)[: value.numel()].view_as(value)
                ).sum().backward()
        except Exception as error:
            if "modified by an inplace operation" in str(error):
                raise SpoiledError from None
            results["error"] = type(error).__name__
        results["input"] = x
        results["gradient of input"] = x.grad
        results |= {f"gradient of {name}": parameter.grad for name, parameter in self.model.named_parameters()}
        results |= {f"state {name}": value for name, value in self.model.state_dict().items()}
        results |= {f"buffer {name}": value for name, value in self.model.named_buffers()}
        results["random numbers"] = torch.get_rng_state()
        results["notes"] = list(self.notes)
        results["frozen"] = [parameter.requires_grad for parameter in self.model.parameters()]
        results["training"] = [module.training for module in self.model.modules()]
        return results


class SpoiledError(Exception):
    """A backward pass found that what it needs has been written over."""


def compare(twins: list[Twin], done: list[str]) -> None:
    """Both run alike, but that an op may not need what an in-place op writes over."""
    original, converted = twins
    try:
        expected = original.run()
    except SpoiledError:
        with contextlib.suppress(SpoiledError):
            converted.run()
        return
    actual = converted.run()
    equal(expected, actual, f"after {done}")


def equal(expected: dict[str, Any], actual: dict[str, Any], when: str) -> None:
    """The same under the same names; tensors up to rounding."""
    assert expected.keys() == actual.keys(), f"{when}: {list(expected)} became {list(actual)}: {actual.get('error')}"
    for name, value in expected.items():
        other = actual[name]
        if isinstance(value, Tensor) and isinstance(other, Tensor):
            assert value.dtype == other.dtype, f"{when}: {name} of {value.dtype} is of {other.dtype}"
            tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(value.dtype, 0.0)
            scale = float(value.detach().abs().nan_to_num(0, 0, 0).amax()) if tolerance and value.numel() else 1.0
            message = lambda text, name=name: f"{when}: {name}: {text}"  # noqa: E731
            torch.testing.assert_close(
                plain(other),
                plain(value),
                rtol=tolerance,
                atol=tolerance * max(scale, 1.0),
                equal_nan=True,
                msg=message,
            )
        else:
            assert type(value) is type(other), f"{when}: {name}: {value} became {other}"
            assert value is None or isinstance(value, Tensor) or value == other, (
                f"{when}: {name}: {value} became {other}"
            )


def plain(tensor: Tensor) -> Tensor:
    return tensor.detach().as_subclass(Tensor)
