"""How the ops compute on DTensors: their sharding rules, registered when this module is imported.

A rule is a list of layouts. A layout says how the tensors of an op may be spread over one dimension of a device mesh so
that every device computes its part without communication. DTensor takes the one that costs the least to come to.

The rules are registered one level below ``torch.distributed.tensor.experimental.register_sharding``. That function
counts a list of tensors as one output, and its results are cached without regard to strings and lists of bools, such as
the activation and output_mask, on which these rules depend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress, repeat
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from ._activations import FUNCTIONS
from ._torch_internal import (
    DTensorSpec,
    FakeTensorMode,
    OpOverload,
    OpSchema,
    OpSpec,
    OpStrategy,
    RuntimeSchemaInfo,
    TensorMeta,
    TupleStrategy,
    detect_fake_mode,
    expand_strategy,
    op_dispatcher,
    tree_leaves,
    tree_map_only,
)

# The arguments of an op by name. A tensor is an OpStrategy, which has its shape and its placements.
Arguments = dict[str, Any]
# The placements of arguments and results by name: of a list of tensors one for each, or one for all. What is not named
# is replicated.
Layout = dict[str, Placement | list[Placement]]
Layouts = Callable[[Arguments], Iterator[Layout]]
# One tensor among the arguments or results: its name, and its place if it is one of a list.
Slot = tuple[str, int]
Slots = Callable[[Arguments], list[Slot]]


# ---- the layouts of each op, besides the one with everything replicated ----


def _bias_act(a: Arguments) -> Iterator[Layout]:
    """Of the plain activations too: they have no bias."""
    x = a["self"] if "self" in a else a["saved"]
    for shard in _shards(x, range(x.ndim - 1)):
        yield {"self": shard, "saved": shard, "output": shard}
    if x.ndim:
        shard = Shard(x.ndim - 1)
        yield {"self": shard, "saved": shard, "bias": Shard(0), "output": shard}
    if a["activation"] == "identity":
        yield {"self": Partial(), "saved": Partial(), "bias": Partial(), "output": Partial()}


def _act_mul(a: Arguments) -> Iterator[Layout]:
    for shard in _shards(a["gate"], range(a["gate"].ndim)):
        yield {"gate": shard, "up": shard, "output": shard}
    yield {"up": Partial(), "output": Partial()}


def _gated_act(a: Arguments) -> Iterator[Layout]:
    for shard in _shards(a["self"], range(a["self"].ndim - 1)):
        yield {"self": shard, "output": shard}


def _mlp(a: Arguments) -> Iterator[Layout]:
    features = Shard(a["input"].ndim - 1)
    first = a["weights"][0].ndim - 2 if a["weights"] else 0  # 1 of an ensemble, whose members come first
    for shard in _shards(a["input"], range(first, features.dim)):
        yield {"input": shard, "saved": shard, "output": shard}
    if first:
        yield dict.fromkeys(["input", "weights", "biases", "saved", "output"], Shard(0))
    # The last layer by columns, that is by its output features.
    before: list[Placement] = [Replicate()] * (len(a["weights"]) - 1)
    columns = [*before, Shard(first)]
    yield {"weights": columns, "biases": columns, "saved": [*before, features], "output": features}
    # The last layer by rows, that is by its input features, and the one before it by columns: nothing that is not
    # linear comes after the sum.
    if a["output_activation"] == "identity":
        layout: Layout = {"saved": [*before[1:], features]} if before else {"input": features}
        if before:
            before[-1] = Shard(first)
        yield {**layout, "weights": [*before, Shard(first + 1)], "biases": [*before, Partial()], "output": Partial()}


def _mlp_jet(a: Arguments) -> Iterator[Layout]:
    rows = a["input"].ndim - 2  # of a point, which stay together
    for layout in _mlp(a):
        if getattr(layout.get("input"), "dim", None) != rows:
            yield layout


def _linear_act(a: Arguments) -> Iterator[Layout]:
    for layout in _mlp({"input": a["input"], "weights": [a["weight"]], "output_activation": a["activation"]}):
        yield {**layout, "weight": layout.get("weights", []), "bias": layout.get("biases", [])}


def _gated_mlp(a: Arguments) -> Iterator[Layout]:
    features = Shard(a["input"].ndim - 1)
    for shard in _shards(a["input"], range(features.dim)):
        yield {"input": shard, "gate": shard, "up": shard, "output": shard}
    yield {"down_weight": Shard(0), "down_bias": Shard(0), "output": features}
    columns: Layout = dict.fromkeys(["gate_weight", "up_weight", "gate_bias", "up_bias"], Shard(0))
    hidden: Layout = {"gate": features, "up": features}
    yield {**columns, **hidden, "down_weight": Shard(1), "down_bias": Partial(), "output": Partial()}


def _sequential(a: Arguments) -> Iterator[Layout]:
    if "dropout" in a["steps"].split():
        return  # what is dropped depends on a row's place in the whole
    for shard in _shards(a["input"], range(a["input"].ndim - 1)):
        yield {"input": shard, "saved": shard, "output": shard}


def _shards(x: OpStrategy, dims: range) -> Iterator[Placement]:
    """Shards of these dimensions, and those that the tensor has which are not plain ones (strided, after a view)."""
    yield from map(Shard, dims)
    for placement in x.strategies[0].output_spec.placements:
        if not isinstance(placement, Shard) and getattr(placement, "dim", None) in dims:
            yield placement


def _backward(layouts: Layouts, *gradients: str) -> Layouts:
    """The layouts of an op's backward, which returns ``grad_...`` of these arguments."""

    def with_gradients(a: Arguments) -> Iterator[Layout]:
        names = {name: f"grad_{name}" for name in ("output", *gradients)}
        yield dict.fromkeys(names.values(), Partial())  # linear in grad_output
        for layout in layouts(a):
            yield {**layout, **{grad: _transposed(layout.get(name, Replicate())) for name, grad in names.items()}}

    return with_gradients


def _transposed(placement: Any) -> Any:
    """The placement of a tensor's gradient.

    Each copy of a tensor contributes to its gradient, and the gradient of a sum is that of each of its terms.
    """
    if isinstance(placement, list):
        return list(map(_transposed, placement))
    if isinstance(placement, Replicate):
        return Partial()
    return Replicate() if isinstance(placement, Partial) else placement


# ---- from layouts to strategies ----


def _strategy(layouts: Layouts, results: Slots, op_schema: OpSchema) -> OpStrategy:
    """DTensor's strategies for one call of an op."""
    op = op_schema.op
    a = _arguments(op_schema)
    inputs = {
        (name, i): tensor
        for name, value in a.items()
        for i, tensor in enumerate(value if isinstance(value, list) else [value])
        if isinstance(tensor, OpStrategy)
    }
    made = _fake_results(op, a)
    metas = [TensorMeta(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tree_leaves(made)]
    outputs = list(compress(results(a), a.get("output_mask", repeat(True))))[: len(metas)]
    strategy = expand_strategy(
        op_schema.get_mesh_from_args(),
        OpSchema(op, tuple(t for (name, _), t in inputs.items() if name != "out"), op_schema.kwargs_schema),
        [[_placement(layout, slot) for slot in (*outputs, *inputs)] for layout in chain([{}], layouts(a))],
        output_tensor_meta=metas,
        input_index=len(outputs),
        inplace_op=op_schema.is_inplace_op(),
    )
    for spec in strategy.strategies:
        specs = spec.output_specs
        spec.output_specs = _arranged(made, iter([specs] if isinstance(specs, DTensorSpec) else specs or []))
    return strategy


def _arguments(op_schema: OpSchema) -> Arguments:
    schema = op_schema.op._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, op_schema.args_schema, strict=False)}
    values = {argument.name: argument.default_value for argument in schema} | given | op_schema.kwargs_schema
    lists = {name: list(value.children) for name, value in values.items() if isinstance(value, TupleStrategy)}
    # DTensor leaves some lists as they are, torch 2.11 those that begin with None.
    return tree_map_only(DTensorSpec, lambda spec: OpStrategy([OpSpec(spec)]), values | lists)


def _fake_results(op: OpOverload, a: Arguments) -> Any:
    """What the op returns, as fake tensors. DTensor asks the op too, but not for the tensors of a list in a tuple."""

    def fake(x: OpStrategy) -> Tensor:
        meta = x.tensor_meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=x.mesh.device_type)

    with detect_fake_mode() or FakeTensorMode(), disable_proxy_modes_tracing():
        tensors = tree_map_only(OpStrategy, fake, a)
        keywords = {"out": tensors.pop("out")} if "out" in tensors else {}
        return op(*tensors.values(), **keywords)


def _placement(layout: Layout, slot: Slot) -> Placement:
    name, i = slot
    # `out` becomes the output.
    placement = layout.get("output" if name == "out" else name) or Replicate()
    return placement[i] if isinstance(placement, list) else placement


class _Specs(tuple[Any, ...]):
    """The specs of several results. DTensor, which expects no list among them, asks each for its placements."""

    placements = ()

    @property
    def tensor_meta(self) -> NoReturn:
        """Of one result that a process outside the mesh makes up: DTensor can't make up several."""
        raise NotImplementedError(
            "fastops: a process is not in the mesh of its DTensors, and the op has a list of results (mlp, mlp_jet and "
            "sequential in training): call it in the processes of the mesh alone, or under torch.no_grad()"
        )


def _arranged(made: Any, specs: Iterator[DTensorSpec | None]) -> Any:
    """The specs in the arrangement of the results that they are for."""
    return next(specs) if isinstance(made, Tensor) else _Specs(_arranged(item, specs) for item in made)


# ---- the registrations ----


def _register(name: str, layouts: Layouts, results: Slots) -> None:
    packet = getattr(torch.ops.fastops, name)
    for overload in packet.overloads():
        op = getattr(packet, overload)
        schema_info = RuntimeSchemaInfo(
            static_argnum=0,  # every argument counts
            static_kwargkey=["out"] if overload == "out" else None,
            needs_pytree=True,
        )
        strategy = partial(_strategy, layouts, results)
        op_dispatcher.sharding_propagator.register_op_strategy(op, strategy, schema_info)


def _each(*names: str) -> Slots:
    return lambda a: [(name, 0) for name in names]


def _mlp_results(a: Arguments) -> list[Slot]:
    return [("output", 0), *(("saved", i) for i in range(len(a["weights"])))]


def _mlp_gradients(a: Arguments) -> list[Slot]:
    layers = range(len(a["weights"]))
    return [("grad_input", 0), *((name, i) for i in layers for name in ("grad_weights", "grad_biases"))]


def _sequential_results(a: Arguments) -> list[Slot]:
    return [("output", 0), *(("saved", i) for i in range(len(a["steps"].split())))]


def _sequential_gradients(a: Arguments) -> list[Slot]:
    return [("grad_input", 0), *(("grad_parameters", i) for i in range(len(a["parameters"])))]


def _register_all() -> None:
    output = _each("output")
    for name in FUNCTIONS:
        for suffix in ("", "_"):
            _register(name + suffix, lambda a, name=name: _bias_act({**a, "activation": name}), output)  # type: ignore[misc]
    _register("activation_backward", _backward(_bias_act, "self"), _each("grad_self"))
    _register("bias_act", _bias_act, output)
    _register("bias_act_backward", _backward(_bias_act, "self", "bias"), _each("grad_self", "grad_bias"))
    _register("act_mul", _act_mul, output)
    _register("act_mul_backward", _backward(_act_mul, "gate", "up"), _each("grad_gate", "grad_up"))
    _register("gated_act", _gated_act, output)
    _register("gated_act_backward", _backward(_gated_act, "self"), _each("grad_self"))
    _register("linear_act", _linear_act, output)
    _register("mlp", _mlp, output)
    _register("mlp_forward", _mlp, _mlp_results)
    _register("mlp_backward", _backward(_mlp, "input", "weights", "biases"), _mlp_gradients)
    _register("mlp_jet", _mlp_jet, output)
    _register("mlp_jet_forward", _mlp_jet, _mlp_results)
    _register("mlp_jet_backward", _backward(_mlp_jet, "input", "weights", "biases"), _mlp_gradients)
    _register("gated_mlp", _gated_mlp, output)
    _register("gated_mlp_forward", _gated_mlp, _each("output", "gate", "up"))
    weights = ["gate_weight", "up_weight", "down_weight", "gate_bias", "up_bias", "down_bias"]
    gradients = [f"grad_{name}" for name in ("input", *weights)]
    _register("gated_mlp_backward", _backward(_gated_mlp, "input", *weights), _each(*gradients))
    _register("sequential", _sequential, output)
    _register("sequential_forward", _sequential, _sequential_results)
    _register("sequential_backward", _backward(_sequential, "input", "parameters"), _sequential_gradients)


_register_all()
