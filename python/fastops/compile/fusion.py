"""Fused ops in the place of chains of nodes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from .._resolve import PARAMETERS, describe
from .._torch_internal import dispatch_key_for_device, has_kernel
from .calls import ELEMENTWISE, call_of, is_off, written
from .facts import Facts, same_sizes, value_of
from .formulas import IDENTITY, Activation
from .patterns import Activated, Gated, Inside, Linear, Patterns

# The activations that are faster here than Inductor's by more than it gains by computing them together with what is
# around them: measured with a bias before and a residual connection after.
FASTER = ("gelu_tanh", "mish")
FASTER_IN_TRAINING = (*FASTER, "softshrink")


class Fused(NamedTuple):
    """Nodes that an op was put in the place of.

    Attributes:
        op: the op's name and activations, as text.
        node: the op's node in the fused graph.
        replaced: the names of the nodes that it computes.
    """

    op: str
    node: fx.Node
    replaced: tuple[str, ...]


class Left(NamedTuple):
    """A linear layer, an activation or a gated unit that was left as it is: its node's name, and why."""

    name: str
    what: str
    reason: str


@dataclasses.dataclass
class Report:
    """What :func:`fuse_graph` did."""

    fused: list[Fused] = dataclasses.field(default_factory=list)
    left: list[Left] = dataclasses.field(default_factory=list)


class _Transposed(NamedTuple):
    """An argument that is to be transposed first."""

    node: fx.Node


class _Plan(NamedTuple):
    """An op with its arguments, and the nodes that it replaces besides the one whose place it takes.

    Without a matrix product it has an ``elementwise`` activation. The ``last`` activation gives its result.
    """

    op: str
    arguments: tuple[Any, ...]
    inside: Inside
    text: str
    elementwise: str | None = None
    last: Activation = IDENTITY


class _Layer(NamedTuple):
    """A linear layer with its activation."""

    activation: Activation
    linear: Linear
    inside: Inside

    @property
    def weight(self) -> fx.Node | _Transposed:
        return _Transposed(self.linear.weight) if self.linear.is_transposed else self.linear.weight


def fuse_graph(module: fx.GraphModule, faster: Sequence[str] | None = None) -> Report:
    """Puts fused ops into a graph that Dynamo captured, in place. What cannot be fused is left as it is.

    Activations without a matrix product are replaced where they are ``faster`` than Inductor's.
    """
    report = _Fusion(module.graph, faster).run()
    module.graph.lint()
    module.recompile()
    return report


class _Fusion:
    def __init__(self, graph: fx.Graph, faster: Sequence[str] | None) -> None:
        self.graph = graph
        self.faster = faster
        self.facts = Facts(graph)
        self.patterns = Patterns(graph, self.facts)
        self.reasons: dict[fx.Node, str] = {}
        self.done: set[fx.Node] = set()

    def run(self) -> Report:
        """From the last node to the first, so that each op becomes as large as it can be."""
        report = Report()
        nodes = [node for node in self.graph.nodes if call_of(node) is not None]
        for node in reversed(nodes):
            if node not in self.done and (fused := self._fuse_at(node)):
                report.fused.insert(0, fused)
        report.left = [left for node in nodes if node not in self.done and (left := self._left(node))]
        for node in reversed(nodes):
            if node not in self.done and _is_unused(node):
                self.graph.erase_node(node)
        return report

    def _fuse_at(self, node: fx.Node) -> Fused | None:
        for plan in self._plans(node):
            objection, value = self._try(node, plan)
            if objection is None:
                return self._replace(node, plan, value)
            self.reasons.setdefault(node, f"{plan.text}: {objection}")
        return None

    # ---- plans ----

    def _plans(self, node: fx.Node) -> Iterator[_Plan]:
        """The ops that give what the node gives, the largest first."""
        for layer in self._layers(node):
            yield from self._chains(layer)
        for gated in self.patterns.gated(node):
            yield _gated_act(gated)
        for activated in self.patterns.activated(node):
            if activated.activation != IDENTITY:
                if biased := self.patterns.biased(activated.base):
                    yield _bias_act(activated, *biased)
                yield _activation(activated)

    def _layers(self, node: fx.Node) -> Iterator[_Layer]:
        for activation, base, inside in self.patterns.activated(node):
            linear = self.patterns.linear(base)
            if linear is not None:
                yield _Layer(activation, linear, (linear.inside | inside | {base}) - {node})

    def _chains(self, last: _Layer) -> list[_Plan]:
        """The chains of layers that end with this one."""
        plans = []
        if last.activation != IDENTITY:
            plans.append(_linear_act(last))
        elif gated_mlp := self._gated_mlp(last):
            plans.append(gated_mlp)
        layers, inside = [last], last.inside
        while hidden := self._hidden(layers):
            inside |= hidden.inside | {layers[0].linear.input}
            layers.insert(0, hidden)
            plans.append(_mlp(layers, inside))
        return plans[::-1]

    def _hidden(self, layers: list[_Layer]) -> _Layer | None:
        """The layer before these, if it has the activation of the hidden ones."""
        for layer in self._layers(layers[0].linear.input):
            if layer.activation != IDENTITY and (len(layers) == 1 or layer.activation == layers[0].activation):
                return layer
        return None

    def _gated_mlp(self, down: _Layer) -> _Plan | None:
        hidden = down.linear.input
        same = [(one.base, one.inside) for one in self.patterns.activated(hidden) if one.activation == IDENTITY]
        for gated, between in (
            (gated, inside | {base}) for base, inside in same for gated in self.patterns.gated(base)
        ):
            gate, up = (self._plain_linear(node) for node in (gated.gate, gated.up))
            if gated.packed or not gate or not up or gate.linear.input is not up.linear.input:
                continue
            inside = down.inside | between | gated.inside | gate.inside | up.inside | {hidden, gated.gate, gated.up}
            weights, biases = zip(*((layer.weight, layer.linear.bias) for layer in (gate, up, down)), strict=True)
            arguments = (gate.linear.input, *weights, *biases, gated.activation.name, list(gated.activation.params))
            return _Plan("gated_mlp", arguments, inside, f"gated_mlp({describe(*gated.activation)})")
        return None

    def _plain_linear(self, node: fx.Node) -> _Layer | None:
        return next((layer for layer in self._layers(node) if layer.activation == IDENTITY), None)

    # ---- trying and replacing ----

    def _try(self, node: fx.Node, plan: _Plan) -> tuple[str | None, Any]:
        """What speaks against a plan, or else the fake tensor that its op gives."""
        given: list[fx.Node] = []
        _map(plan.arguments, given.append, given.append)
        if twice := plan.inside.intersection(given):
            return f"{next(iter(twice)).name} is also an argument of the op", None
        for inner in plan.inside:
            if others := set(inner.users) - plan.inside - {node}:
                return f"{inner.name} is also needed by {', '.join(sorted(other.name for other in others))}", None
        faster = self.faster or (FASTER_IN_TRAINING if value_of(node).requires_grad else FASTER)
        if plan.elementwise not in (None, *faster):
            return "Inductor computes it together with what is around it", None
        nodes = [*plan.inside, node]
        if not self.facts.fits(*nodes):
            return next(filter(None, map(self.facts.obstacle, nodes))), None
        if not self.facts.one_section(nodes):
            return "the mode (such as torch.no_grad) changes in between", None
        if not self.facts.nothing_written(nodes):
            return "something is written to in place in between", None
        expected = value_of(node)
        is_written = any(same in written(user) for same in _itself(node) for user in same.users)
        if is_written and expected.requires_grad and _keeps_output(*plan.last):
            return "its result, which the op keeps for its gradient, is written to in place", None
        if not _has_kernel(plan.op, expected.device):
            return f"fastops has no kernel for {expected.device.type}", None
        try:
            with torch.no_grad():
                value = _op(plan.op)(*_map(plan.arguments, value_of, lambda weight: value_of(weight).t()))
        except (TypeError, ValueError) as error:
            return str(error), None
        if value.dtype != expected.dtype or not same_sizes(value.shape, expected.shape):
            return "the result would be another one", None
        if not same_sizes(value.stride(), expected.stride()):
            return "the result would have other strides", None
        return None, value

    def _replace(self, node: fx.Node, plan: _Plan, value: Any) -> Fused:
        def transpose(weight: fx.Node) -> fx.Node:
            transposed = self.graph.call_method("t", (weight,))
            transposed.meta["example_value"] = value_of(weight).t()
            return transposed

        with self.graph.inserting_before(node):
            new = self.graph.call_function(_op(plan.op), _map(plan.arguments, lambda argument: argument, transpose))
        new.meta = {**node.meta, "example_value": value}
        node.replace_all_uses_with(new)
        replaced = sorted([*plan.inside, node], key=self.facts.order.__getitem__)
        for old in reversed(replaced):
            self.graph.erase_node(old)
        self.done.update(replaced)
        return Fused(plan.text, new, tuple(old.name for old in replaced))

    def _left(self, node: fx.Node) -> Left | None:
        """Why a linear layer, an activation or a gated unit was left; None for other nodes."""
        call = call_of(node)
        is_linear = call is not None and call.name in ("linear", "addmm", "matmul")
        is_activation = call is not None and call.name in (*PARAMETERS, "glu")
        if call is None or not (is_linear or is_activation or (call.name in ELEMENTWISE and node in self.reasons)):
            return None
        reason = self.reasons.get(node) or self.facts.obstacle(node)
        if not reason and is_linear and self.patterns.linear(node) is None:
            reason = "its operands are not a tensor and a matrix of one dtype, or its bias is broadcast"
        elif not reason and is_linear:
            reason = "no activation that fastops has comes before or after it"
        return Left(node.name, call.name, reason or "its parameters are not constants")


def _linear_act(layer: _Layer) -> _Plan:
    name, params = layer.activation
    arguments = (layer.linear.input, layer.weight, layer.linear.bias, name, list(params))
    return _Plan("linear_act", arguments, layer.inside, f"linear_act({describe(name, params)})", last=layer.activation)


def _mlp(layers: list[_Layer], inside: Inside) -> _Plan:
    hidden, last = layers[0].activation, layers[-1].activation
    arguments = (
        layers[0].linear.input,
        [layer.weight for layer in layers],
        [layer.linear.bias for layer in layers],
        *(hidden.name, last.name, list(hidden.params), list(last.params)),
    )
    text = ", ".join([describe(*hidden)] * (len(layers) - 1) + ([describe(*last)] if last != IDENTITY else []))
    return _Plan("mlp", arguments, inside, f"mlp of {len(layers)} layers({text})", last=last)


def _gated_act(gated: Gated) -> _Plan:
    name, params = gated.activation
    text = describe(name, params)
    if gated.packed is not None:
        packed = (gated.packed, name, list(params), gated.gate_last)
        return _Plan("gated_act", packed, gated.inside, f"gated_act({text})", name)
    return _Plan("act_mul", (gated.gate, gated.up, name, list(params)), gated.inside, f"act_mul({text})", name)


def _bias_act(activated: Activated, tensor: fx.Node, bias: fx.Node) -> _Plan:
    name, params = activated.activation
    inside = activated.inside | {activated.base}
    arguments, text = (tensor, bias, name, list(params)), f"bias_act({describe(name, params)})"
    return _Plan("bias_act", arguments, inside, text, name, activated.activation)


def _activation(activated: Activated) -> _Plan:
    name, params = activated.activation
    arguments, text = (activated.base, *params), describe(name, params)
    return _Plan(name, arguments, activated.inside, text, name, activated.activation)


def _op(name: str) -> Any:
    return getattr(torch.ops.fastops, name).default


def _map(arguments: Any, node: Callable[[fx.Node], Any], transposed: Callable[[fx.Node], Any]) -> Any:
    """The arguments with something in the place of each node."""
    if isinstance(arguments, _Transposed):
        return transposed(arguments.node)
    if isinstance(arguments, fx.Node):
        return node(arguments)
    if isinstance(arguments, (list, tuple)):
        return type(arguments)([_map(argument, node, transposed) for argument in arguments])
    return arguments


def _has_kernel(op: str, device: torch.device) -> bool:
    return bool(has_kernel(f"fastops::{op}", dispatch_key_for_device(device.type)))


@functools.cache
def _keeps_output(name: str, params: tuple[float, ...]) -> bool:
    """Whether the derivative of an activation is taken of its output, which must stay as it is until then."""
    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True)
        y = _op(name)(x, *params)
        with torch.no_grad():
            y.add_(1)
        try:
            torch.autograd.grad(y, x)
        except RuntimeError:
            return True
    return False


def _itself(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes whose tensor is, in eager mode, the very one that a node gives: dropouts that are off pass it on."""
    yield node
    for user in node.users:
        call = call_of(user)
        if call is not None and call.name == "dropout" and call.arguments == (node,) and is_off(call):
            yield from _itself(user)


def _is_unused(node: fx.Node) -> bool:
    """Whether nothing is lost without it."""
    call = call_of(node)
    return not node.users and call is not None and not call.in_place and call.name != "dropout"
