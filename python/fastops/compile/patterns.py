"""What the nodes of a captured graph compute: activations of a tensor, linear layers, gated units.

Each pattern names the node that it reads and the nodes between, which are not computed when an op takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from .._resolve import PARAMETERS
from .calls import Call, call_of, is_off
from .facts import Facts, same_sizes, value_of
from .formulas import IDENTITY, Activation, apply, recognize
from .polynomials import Polynomial, X

Inside = frozenset[fx.Node]
_LARGEST = 24  # terms of the polynomials that are looked at: more than any formula has


class Activated(NamedTuple):
    """``activation(base)``."""

    activation: Activation
    base: fx.Node
    inside: Inside


class Linear(NamedTuple):
    """``input @ weight.T + bias``, or ``input @ weight + bias`` where the weight is transposed."""

    input: fx.Node
    weight: fx.Node
    is_transposed: bool
    bias: fx.Node | None
    inside: Inside


class Gated(NamedTuple):
    """``activation(gate) * up``: of two tensors, or of the halves of the last dimension of one."""

    activation: Activation
    gate: fx.Node
    up: fx.Node
    packed: fx.Node | None
    gate_last: bool
    inside: Inside


class Patterns:
    """The patterns that end at each node of a graph."""

    def __init__(self, graph: fx.Graph, facts: Facts) -> None:
        self.facts = facts
        # For each node, what it is as a function of one tensor before it, for each such tensor.
        self._functions: dict[fx.Node, dict[fx.Node, tuple[Polynomial, Inside]]] = {}
        self._linears: dict[fx.Node, Linear | None] = {}
        for node in graph.nodes:
            self._functions[node] = self._functions_at(node)
            self._linears[node] = self._linear_at(node)

    def activated(self, node: fx.Node) -> Iterator[Activated]:
        """The activations that the node is, from the longest formula to the shortest, and last the identity."""
        functions = self._functions[node].items()
        for base, (function, inside) in sorted(functions, key=lambda item: -len(item[1][1])):
            activation = recognize(function, value_of(node).dtype)
            if activation is not None and value_of(base).dtype is not torch.bool:
                yield Activated(activation, base, inside)
        yield Activated(IDENTITY, node, frozenset())

    def linear(self, node: fx.Node) -> Linear | None:
        """The linear layer that the node is."""
        return self._linears[node]

    def _linear_at(self, node: fx.Node) -> Linear | None:
        linear = self._linear(node)
        if linear is None:
            return None
        input, weight, is_transposed, bias, _ = linear
        tensors = [tensor for tensor in (input, weight, bias) if tensor is not None]
        if not self.facts.fits(node, *tensors):
            return None
        value, w = value_of(node), value_of(weight)
        kinds = {(value_of(tensor).dtype, value_of(tensor).device) for tensor in (*tensors, node)}
        if w.dim() != 2 or len(kinds) != 1:
            return None
        out_features, in_features = reversed(w.shape) if is_transposed else w.shape
        fits = same_sizes(value_of(input).shape[-1:], [in_features])
        fits = fits and same_sizes(value.shape, [*value_of(input).shape[:-1], out_features])
        return linear if fits and (bias is None or same_sizes(value_of(bias).shape, [out_features])) else None

    def biased(self, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
        """The tensor and the bias of its last dimension that the node is the sum of."""
        call = call_of(node)
        if call is None or call.name != "add" or call.keywords or len(call.arguments) != 2:
            return None
        for tensor, bias in (call.arguments, call.arguments[::-1]):
            if _is_tensor(tensor) and _is_tensor(bias) and self.facts.fits(node, tensor, bias):
                shapes_fit = same_sizes(value_of(bias).shape, value_of(tensor).shape[-1:])
                if shapes_fit and value_of(bias).dim() == 1 and value_of(bias).dtype == value_of(tensor).dtype:
                    return tensor, bias
        return None

    def gated(self, node: fx.Node) -> Iterator[Gated]:
        """The gated units that the node is."""
        call = call_of(node)
        if call is None or not self.facts.fits(node):
            return
        if call.name == "glu":
            yield from self._glu(node, call)
        if call.name != "mul" or len(call.arguments) != 2 or call.keywords:
            return
        a, b = call.arguments
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or a is b:
            return
        for gate_side, up in ((a, b), (b, a)):
            if not self.facts.fits(gate_side, up) or not self.facts.alike(node, gate_side, up):
                continue
            if value_of(up).dtype is torch.bool:
                continue
            for activation, gate, between in self.activated(gate_side):
                if activation != IDENTITY:
                    packed, gate_last = _halves(gate, up) or (None, False)
                    yield Gated(activation, gate, up, packed, gate_last, between | {gate_side})

    def _glu(self, node: fx.Node, call: Call) -> Iterator[Gated]:
        (input,), dim = call.arguments[:1], {"dim": -1, **dict(zip(["dim"], call.arguments[1:], strict=False))}
        dim |= call.keywords
        if self.facts.fits(input) and dim["dim"] in (-1, value_of(input).dim() - 1):
            yield Gated(Activation("sigmoid"), input, input, input, True, frozenset())

    def _functions_at(self, node: fx.Node) -> dict[fx.Node, tuple[Polynomial, Inside]]:
        call = call_of(node)
        if call is None or not self.facts.fits(node):
            return {}
        if call.name in ("dropout", "to"):
            if not self._does_nothing(node, call):
                return {}
            call = Call("identity", call.arguments[:1], {}, False)
        operands = list(dict.fromkeys(filter(_is_tensor, call.arguments)))
        if not operands or not self.facts.fits(*operands) or not self.facts.alike(node, *operands):
            return {}
        found: dict[fx.Node, tuple[Polynomial, Inside]] = {}
        of_bases = {operand: self._and_itself(operand) for operand in operands}
        for base in set.intersection(*map(set, of_bases.values())):
            functions = {operand: of_base[base] for operand, of_base in of_bases.items()}
            function = apply(_with_numbers(call), {operand: one for operand, (one, _) in functions.items()}.get)
            if function is not None and len(function.terms) <= _LARGEST:
                found[base] = function, frozenset().union(*(inside for _, inside in functions.values()))
        return found

    def _and_itself(self, node: fx.Node) -> dict[fx.Node, tuple[Polynomial, Inside]]:
        before = {base: (function, inside | {node}) for base, (function, inside) in self._functions[node].items()}
        return {**before, node: (X, frozenset())}

    def _does_nothing(self, node: fx.Node, call: Call) -> bool:
        """Whether a dropout is off, or a conversion is to what the tensor is already."""
        argument = call.arguments[0]
        if call.name == "to":
            return self.facts.fits(argument) and self.facts.alike(node, argument)
        return is_off(call)

    def _linear(self, node: fx.Node) -> Linear | None:
        """As `linear`, before the shapes are looked at."""
        call = call_of(node)
        if call is None or (call.in_place and call.name != "add"):
            return None
        arguments, keywords = list(call.arguments), dict(call.keywords)
        if call.name == "linear":
            arguments += [keywords.pop(name, None) for name in ("input", "weight", "bias")[len(arguments) :]]
            input, weight, bias = arguments
            is_transposed = False
        elif call.name in ("matmul", "addmm") and len(arguments) == (2 if call.name == "matmul" else 3):
            *biases, input, other = arguments
            bias = biases[0] if biases else None
            weight, is_transposed = (inner, False) if (inner := _transposed(other)) else (other, True)
        elif call.name == "add" and len(arguments) == 2 and not keywords:
            return self._with_bias(*arguments) or self._with_bias(*reversed(arguments))
        elif call.name in ("view", "reshape"):
            return self._between_views(arguments[0])
        else:
            return None
        if keywords or not _is_tensor(input) or not _is_tensor(weight) or not (bias is None or _is_tensor(bias)):
            return None
        return Linear(input, weight, is_transposed, bias, frozenset())

    def _with_bias(self, product: Any, bias: Any) -> Linear | None:
        linear = self.linear(product) if _is_tensor(product) and _is_tensor(bias) else None
        if linear is None or linear.bias is not None:
            return None
        return linear._replace(bias=bias, inside=linear.inside | {product})

    def _between_views(self, product: fx.Node) -> Linear | None:
        """A linear layer whose input is made a matrix before, and whose output is given its dimensions back."""
        linear = self.linear(product)
        view = linear and call_of(linear.input)
        if not linear or not view or view.name not in ("view", "reshape"):
            return None
        return linear._replace(input=view.arguments[0], inside=linear.inside | {product, linear.input})


def _with_numbers(call: Call) -> Call:
    """With the values of parameters that Dynamo made symbols. The graph is then for these values only."""
    if call.name not in PARAMETERS:
        return call
    values = {name: _number(value) for name, value in call.keywords.items()}
    return call._replace(keywords=values)


def _number(value: Any) -> Any:
    if isinstance(value, fx.Node) and isinstance(number := value_of(value), (torch.SymFloat, torch.SymInt)):
        return float(number)
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("example_value"), Tensor)


def _transposed(node: Any) -> fx.Node | None:
    """The matrix that the node is the transpose of."""
    call = call_of(node) if _is_tensor(node) else None
    if call is None or call.in_place or call.keywords or value_of(node).dim() != 2:
        return None
    what = (call.name, *call.arguments[1:])
    dims = ((0, 1), (1, 0), (-1, -2), (-2, -1))
    transposes = [("t",), ("getattr", "T"), ("getattr", "mT"), ("permute", 1, 0), ("permute", (1, 0))]
    is_transpose = what in transposes or what in [("transpose", *pair) for pair in dims]
    return call.arguments[0] if is_transpose else None


def _halves(gate: fx.Node, up: fx.Node) -> tuple[fx.Node, bool] | None:
    """The tensor whose last dimension is these two, if it is, and whether the gate is its second half."""
    gate_half, up_half = _half(gate), _half(up)
    if gate_half and up_half and gate_half[0] is up_half[0] and {gate_half[1], up_half[1]} == {0, 1}:
        return gate_half[0], gate_half[1] == 1
    return None


def _half(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The tensor that the node is half of, and which half, if the other half is, too."""
    call = call_of(node)
    if call is None or call.name != "getitem" or not isinstance(call.arguments[0], fx.Node):
        return None
    source, index = call.arguments
    pieces = call_of(source)
    if pieces and pieces.name in ("chunk", "split"):
        source = pieces.arguments[0]
        number = index
    else:
        number = _half_of_slices(index, value_of(source)) if _is_tensor(source) else None
    if number not in (0, 1) or not _is_tensor(source):
        return None
    whole, half = value_of(source).shape, value_of(node).shape
    is_half = len(whole) == len(half) and same_sizes(whole[:-1], half[:-1]) and same_sizes(whole[-1:], [2 * half[-1]])
    return (source, number) if is_half else None


def _half_of_slices(index: Any, value: Tensor) -> int | None:
    """Which half of the last dimension ``tensor[..., :n]`` and ``tensor[..., n:]`` are, if one of them is."""
    if not isinstance(index, tuple) or not isinstance(index[-1], slice) or index[-1].step not in (None, 1):
        return None
    *others, last = index
    if not (others == [Ellipsis] or (len(index) == value.dim() and all(other == slice(None) for other in others))):
        return None
    size = value.shape[-1]
    if last.start in (None, 0):
        return 0
    return 1 if last.stop in (None, size) and isinstance(last.start, int) and last.start * 2 == size else None
