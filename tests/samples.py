"""One table of sample calls of every op, each with the plain-PyTorch function that it must equal.

The tests of derivatives, transforms and registrations iterate over it.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from expected import (
    Function,
    activation,
    derivative,
    gated_mlp_reference,
    mlp_jet_reference,
    mlp_reference,
    of_members,
    slope_from_output,
    split_layers,
    vector_jacobian,
)
from reference import ACTIVATIONS, GRADIENT_FROM_OUTPUT, parameter_sets
from strategies import PROFILE, WIDEST

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A call of an op as a function of tensors of the given shapes."""

    op: str  # as registered, with the overload
    label: str
    shapes: tuple[Shape, ...]
    arguments: Function  # of the tensors: the op's arguments
    expected: Function  # of the tensors: the result in plain PyTorch
    keywords: Function = lambda *tensors: {}
    outputs: Function = lambda result: result  # those of the op that are differentiable
    scale: float = 1.0
    differentiable: bool = True
    of_points: int = 0  # so many tensors have the rows of points, whose number follows from other arguments

    def __str__(self) -> str:
        return f"{self.op}-{self.label}".rstrip("-")

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The op with its overload."""
        name, _, overload = self.op.partition(".")
        return getattr(getattr(torch.ops.fastops, name), overload or "default")

    def tensors(self, device: Any, requires_grad: bool = False, draw: int = 0) -> list[Tensor]:
        """Tensors of the widest dtype, evenly spread over [-scale, scale] in random order, the same for each draw."""
        generator = torch.Generator().manual_seed(zlib.crc32(str(self).encode()) + draw)
        made = []
        for shape in self.shapes:
            count = torch.Size(shape).numel()
            values = torch.linspace(-self.scale, self.scale, count, dtype=torch.float64)
            values = values[torch.randperm(count, generator=generator)]
            values = values + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
            made.append(values.reshape(shape).to(device, WIDEST).requires_grad_(requires_grad))
        return made

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The op's differentiable results."""
        return as_tuple(self.outputs(self.overload(*self.arguments(*tensors), **self.keywords(*tensors))))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same results in plain PyTorch."""
        return as_tuple(self.expected(*tensors))


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    """A tensor or several, as a tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def close(actual: Any, expected: Any) -> None:
    """Equal in float64, up to what PyTorch's own formulas lose by cancellation in a third derivative."""
    tolerance = 1e-3 if WIDEST is torch.float32 else 1e-6
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


class Calls(nn.Module):
    """Calls samples with tensors, one after another."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.calls = [(sample.call, len(sample.shapes)) for sample in samples]

    def forward(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        """The results of each."""
        rest = iter(tensors)
        return [call(*itertools.islice(rest, count)) for call, count in self.calls]


def inputs(samples: Sequence[Sample], device: Any, dtype: torch.dtype = WIDEST) -> tuple[Tensor, ...]:
    """The tensors for it."""
    return tuple(tensor.to(dtype) for sample in samples for tensor in sample.tensors(device))


def detached(function: Function, *arguments: Any) -> Any:
    """The function of arguments without gradients and tangents: what an op keeps for its backward pass."""

    def detach(value: Any) -> Any:
        if isinstance(value, list):
            return [detach(item) for item in value]
        return value.detach() if isinstance(value, Tensor) else value

    return function(*map(detach, arguments))


# ---- the samples ----


def plain_samples() -> Iterator[Sample]:
    """Every activation: functional with all parameters, in place, out=."""
    for name in ACTIVATIONS:
        for params in parameter_sets(name):
            yield Sample(
                name,
                "-".join(map(str, params)),
                shapes=((3, 4),),
                arguments=lambda x, params=params: (x, *params),
                expected=activation(name, params),
                scale=6.5,
            )
        common = {"shapes": ((3, 4),), "expected": activation(name), "scale": 6.5}
        yield Sample(f"{name}_", "", arguments=lambda x: (x.clone(),), **common)
        yield Sample(
            f"{name}.out",
            "",
            arguments=lambda x: (x,),
            keywords=lambda x: {"out": torch.empty_like(x)},
            differentiable=False,
            **common,
        )


def activation_backward_samples() -> Iterator[Sample]:
    """Every activation and order, from the input and from the output."""
    for name in ACTIVATIONS:
        f = activation(name)
        for order in (1, 2, 3):
            slope = derivative(f, order)
            yield Sample(
                "activation_backward",
                f"{name}-from-input-{order}",
                shapes=((3, 4), (3, 4)),
                arguments=lambda grad, x, name=name, order=order: (grad, x, name, [], False, order),
                expected=lambda grad, x, slope=slope: grad * slope(x),
                scale=6.5,
            )
            if name not in GRADIENT_FROM_OUTPUT:
                continue
            slope = derivative(slope_from_output(name), order - 1)
            yield Sample(
                "activation_backward",
                f"{name}-from-output-{order}",
                shapes=((3, 4), (3, 4)),
                arguments=lambda grad, x, name=name, order=order, f=f: (grad, f(x), name, [], True, order),
                expected=lambda grad, x, slope=slope, f=f: grad * slope(f(x)),
                scale=6.5,
            )


def bias_act_samples() -> Iterator[Sample]:
    """With and without bias; derivatives from the input and from the output."""
    for name, params in (("tanh", []), ("gelu", []), ("softshrink", [1.5])):
        function = activation(name, params)
        for shapes in (((2, 3, 4), (4,)), ((3, 4),)):
            label = f"{name}-{'bias' if len(shapes) == 2 else 'no-bias'}"
            common = {
                "shapes": shapes,
                "arguments": lambda x, bias=None, name=name, params=params: (x, bias, name, params),
                "expected": lambda x, bias=0.0, function=function: function(x + bias),
                "scale": 3.0,
            }
            yield Sample("bias_act", label, **common)
            yield Sample(
                "bias_act.out",
                label,
                keywords=lambda x, bias=None: {"out": torch.empty_like(x)},
                differentiable=False,
                **common,
            )
        for mask in ([True, True], [True, False], [False, True]):
            yield Sample(
                "bias_act_backward",
                f"{name}-{mask}",
                shapes=((2, 3, 4), (2, 3, 4), (4,)),
                arguments=lambda grad, x, bias, name=name, params=params, mask=mask: (
                    *(grad, x, bias, name, params, False, mask),
                ),
                expected=vector_jacobian(lambda x, bias, function=function: function(x + bias), mask),
                scale=3.0,
            )
    yield Sample(
        "bias_act_backward",
        "tanh-from-output",
        shapes=((3, 4), (3, 4)),
        arguments=lambda grad, y: (grad, y, None, "tanh", [], True, [True, True]),
        expected=lambda grad, y: (grad * (1 - y * y), (grad * (1 - y * y)).sum(0)),
    )


def gated_act_samples() -> Iterator[Sample]:
    """The two-tensor and the one-tensor form."""
    for name, params in (("silu", []), ("sigmoid", []), ("softplus", [2.0, 3.0])):
        function = activation(name, params)
        product = lambda gate, up, function=function: function(gate) * up  # noqa: E731
        yield Sample(
            "act_mul",
            name,
            shapes=((3, 4), (3, 4)),
            arguments=lambda gate, up, name=name, params=params: (gate, up, name, params),
            expected=product,
            scale=3.0,
        )
        for mask in ([True, True], [True, False], [False, True]):
            yield Sample(
                "act_mul_backward",
                f"{name}-{mask}",
                shapes=((3, 4), (3, 4), (3, 4)),
                arguments=lambda grad, gate, up, name=name, params=params, mask=mask: (
                    *(grad, gate, up, name, params, mask),
                ),
                expected=vector_jacobian(product, mask),
                scale=3.0,
            )
        for gate_last in (False, True):
            gated = lambda x, product=product, flip=gate_last: product(*x.chunk(2, -1)[:: -1 if flip else 1])  # noqa: E731
            yield Sample(
                "gated_act",
                f"{name}-{'last' if gate_last else 'first'}",
                shapes=((2, 3, 4),),
                arguments=lambda x, name=name, params=params, gate_last=gate_last: (x, name, params, gate_last),
                expected=gated,
                scale=3.0,
            )
            yield Sample(
                "gated_act_backward",
                f"{name}-{'last' if gate_last else 'first'}",
                shapes=((2, 3, 2), (2, 3, 4)),
                arguments=lambda grad, x, name=name, params=params, gate_last=gate_last: (
                    *(grad, x, name, params, gate_last),
                ),
                expected=vector_jacobian(gated, [True]),
                scale=3.0,
            )


def linear_act_samples() -> Iterator[Sample]:
    """With and without bias, one row and many."""
    for name, leading, has_bias in (("gelu", (2, 2), True), ("tanh", (3,), False), ("identity", (), True)):
        yield Sample(
            "linear_act",
            name,
            shapes=((*leading, 3), (2, 3), (2,))[: 3 if has_bias else 2],
            arguments=lambda x, weight, bias=None, name=name: (x, weight, bias, name),
            expected=mlp_reference([has_bias], activation("identity"), activation(name)),
        )


def perceptron_shapes(input: Shape, sizes: Sequence[int], biased: Sequence[bool], members: Shape) -> tuple[Shape, ...]:
    """Of an input and the parameters W0, b0, W1, ..., those of an ensemble with its members in front."""
    shapes = [input]
    for inputs, outputs, has_bias in zip(sizes[:-1], sizes[1:], biased, strict=True):
        shapes.append((*members, outputs, inputs))
        if has_bias:
            shapes.append((*members, outputs))
    return tuple(shapes)


def mlp_samples() -> Iterator[Sample]:
    """Depths 1 to 3, biases present and absent; each activation's derivative from its input and from its output."""
    cases = [
        ("tanh", "identity", (3, 4, 3, 2), (True, False, True), (2,), ()),
        ("gelu", "sigmoid", (3, 4, 2), (True, True), (2, 2), ()),
        ("softplus", "mish", (3, 2, 2), (False, True), (), ()),
        ("relu", "tanh", (3, 2), (True,), (3,), ()),
        ("tanh", "mish", (3, 4, 2), (True, False), (2, 2), (3,)),
        ("gelu", "identity", (3, 2), (True,), (), (2,)),
    ]
    for hidden, last, sizes, biased, leading, members in cases:
        shapes = perceptron_shapes((*members, *leading, sizes[0]), sizes, biased, members)
        expected = mlp_reference(biased, activation(hidden), activation(last))
        form = f"ensemble-{hidden}" if members else hidden
        if members:
            expected = of_members(expected)

        def arguments(x: Tensor, *parameters: Tensor, biased: Any = biased, names: Any = (hidden, last)) -> tuple:
            return (x, *split_layers(parameters, biased), *names)

        yield Sample("mlp", f"{form}-{last}", shapes, arguments, expected)
        checkpointed = lambda *tensors, arguments=arguments: (*arguments(*tensors), [], [], True)  # noqa: E731
        yield Sample("mlp", f"{form}-{last}-checkpoint", shapes, checkpointed, expected)
        yield Sample("mlp_forward", f"{form}-{last}", shapes, arguments, expected, outputs=lambda result: result[0])

        keeps_output = last in GRADIENT_FROM_OUTPUT and last != "identity"
        everything = [True] + [wanted for has_bias in biased for wanted in (True, has_bias)]
        present = [True] + [True for has_bias in biased for _ in range(1 + has_bias)]
        weights_only = [False] + [wanted for _ in biased for wanted in (True, False)]
        weights_present = [False] + [wanted for has_bias in biased for wanted in [True, False][: 1 + has_bias]]
        for label, mask, kept in (("all", everything, present), ("weights", weights_only, weights_present)):

            def backward_arguments(
                grad: Tensor, *tensors: Tensor, arguments: Any = arguments, mask: Any = mask, keeps: bool = keeps_output
            ) -> tuple:
                x, weights, biases, hidden, last = arguments(*tensors)
                output, saved = detached(torch.ops.fastops.mlp_forward, x, weights, biases, hidden, last)
                return (grad, x, weights, biases, output if keeps else None, saved, hidden, last, [], [], mask)

            yield Sample(
                "mlp_backward",
                f"{form}-{last}-{label}",
                ((*members, *leading, sizes[-1]), *shapes),
                backward_arguments,
                vector_jacobian(expected, kept),
            )


def mlp_jet_samples() -> Iterator[Sample]:
    """With and without second derivatives, each or their sum, with weights or without."""
    cases = [
        ("tanh", "identity", (3, 4, 2), (True, False), (2,), (2, 1), [], ()),
        ("gelu", "sigmoid", (2, 3, 2), (True, True), (2, 2), (2, 2), [], ()),
        ("silu", "mish", (2, 2), (True,), (), (3, 0), [], ()),
        ("softplus", "identity", (2, 3, 2), (False, True), (2,), (2, 1), [1.0, -0.5], ()),
        ("tanh", "identity", (2, 3, 2), (True, True), (2,), (2, 1), [], (3,)),
    ]
    for hidden, last, sizes, biased, leading, (directions, seconds), trace_weights, members in cases:
        rows = 1 + directions + seconds
        shapes = perceptron_shapes((*members, *leading, rows, sizes[0]), sizes, biased, members)
        expected = mlp_jet_reference(directions, biased, activation(hidden), activation(last), trace_weights)
        label = f"{'ensemble-' if members else ''}{hidden}-{last}-{directions}-{seconds}"
        if members:
            expected = of_members(expected)

        def arguments(
            x: Tensor,
            *parameters: Tensor,
            directions: int = directions,
            biased: Any = biased,
            rest: Any = (hidden, last, [], [], trace_weights),
        ) -> tuple:
            return (x, directions, *split_layers(parameters, biased), *rest)

        yield Sample("mlp_jet", label, shapes, arguments, expected, of_points=1)
        first = lambda result: result[0]  # noqa: E731
        yield Sample("mlp_jet_forward", label, shapes, arguments, expected, outputs=first, of_points=1)
        everything = [True] + [wanted for has_bias in biased for wanted in (True, has_bias)]
        present = [True] * len(shapes)

        def backward_arguments(
            grad: Tensor, *tensors: Tensor, arguments: Any = arguments, mask: Any = everything
        ) -> tuple:
            x, directions, weights, biases, *rest = arguments(*tensors)
            _, saved = detached(torch.ops.fastops.mlp_jet_forward, x, directions, weights, biases, *rest)
            return (grad, x, directions, weights, biases, saved, *rest, mask)

        yield Sample(
            "mlp_jet_backward",
            label,
            ((*members, *leading, rows, sizes[-1]), *shapes),
            backward_arguments,
            vector_jacobian(expected, present),
            of_points=2,
        )


def gated_mlp_samples() -> Iterator[Sample]:
    """With and without biases."""
    for name, leading, has_bias in (("silu", (2,), False), ("tanh", (2, 2), True)):
        shapes = ((*leading, 3), (4, 3), (4, 3), (2, 4), (4,), (4,), (2,))[: 7 if has_bias else 4]
        expected = gated_mlp_reference(name)

        def arguments(*tensors: Tensor, name: str = name) -> tuple:
            return (*tensors, *[None] * (7 - len(tensors)), name)

        yield Sample("gated_mlp", name, shapes, arguments, expected)
        checkpointed = lambda *tensors, arguments=arguments: (*arguments(*tensors), [], True)  # noqa: E731
        yield Sample("gated_mlp", f"{name}-checkpoint", shapes, checkpointed, expected)
        yield Sample("gated_mlp_forward", name, shapes, arguments, expected, outputs=lambda result: result[0])
        for label, mask in (
            ("all", [True] * 4 + [has_bias] * 3),
            ("up", [False, False, True, False, False, has_bias, False]),
        ):

            def backward_arguments(
                grad: Tensor, *tensors: Tensor, mask: Any = mask, arguments: Any = arguments
            ) -> tuple:
                padded = arguments(*tensors)
                _, gate, up = detached(torch.ops.fastops.gated_mlp_forward, *padded)
                return (grad, *padded[:6], gate, up, padded[-1], [], mask)

            yield Sample(
                "gated_mlp_backward",
                f"{name}-{label}",
                ((*leading, 2), *shapes),
                backward_arguments,
                vector_jacobian(expected, mask[: len(shapes)]),
            )


SAMPLES = [
    *plain_samples(),
    *activation_backward_samples(),
    *bias_act_samples(),
    *gated_act_samples(),
    *linear_act_samples(),
    *mlp_samples(),
    *mlp_jet_samples(),
    *gated_mlp_samples(),
]

each_differentiable_sample = pytest.mark.parametrize("sample", [s for s in SAMPLES if s.differentiable], ids=str)
# One call of every op, where a test takes long.
EACH_OP = list({s.op: s for s in reversed(SAMPLES)}.values())
EACH_DIFFERENTIABLE_OP = [s for s in EACH_OP if s.differentiable]
each_op = pytest.mark.parametrize("sample", EACH_OP, ids=str)
each_differentiable_op = pytest.mark.parametrize("sample", EACH_DIFFERENTIABLE_OP, ids=str)
each_activation = pytest.mark.parametrize("name", ACTIVATIONS)


def covering(samples: Sequence[Sample]) -> list[Sample]:
    """Fewer calls of each op: every word of their labels and every number of dimensions is in one of them."""
    kept, seen = [], set()
    for sample in samples:
        facts = {(sample.op, fact) for fact in (*sample.label.split("-"), tuple(map(len, sample.shapes)))}
        if not facts <= seen:
            kept.append(sample)
            seen |= facts
    return kept


# For what does not depend on the formula of an activation, as rules and registrations do not: fewer combinations, and
# of activation_backward the calls for one whose derivative is had from its input, one from its output, and one that has
# none beyond the first.
KINDS = ("gelu-", "tanh-", "softshrink-")
COVERING = SAMPLES if PROFILE == "thorough" else covering([s for s in SAMPLES if s.op != "activation_backward"])
RULES = [
    *COVERING,
    *(s for s in SAMPLES if s not in COVERING and s.label.startswith(KINDS) and s.op == "activation_backward"),
]
each_rule = pytest.mark.parametrize("sample", RULES, ids=str)
each_differentiable_rule = pytest.mark.parametrize("sample", [s for s in RULES if s.differentiable], ids=str)


def graphs(samples: list[Sample]) -> pytest.MarkDecorator:
    """Where compiling takes long: the activations, which differ in their formula alone, together; the others each."""
    together = [s for s in samples if s.op.removesuffix(".out").removesuffix("_") in ACTIVATIONS]
    each = [together, *([s] for s in samples if s not in together)]
    names = ["activations", *(s.op for s in samples if s not in together)]
    return pytest.mark.parametrize("samples", each, ids=names)


each_graph = graphs(EACH_OP)
# An activation's in-place form has the node of the other one: of one activation it is enough.
each_node = graphs([s for s in EACH_DIFFERENTIABLE_OP if not s.op.endswith("_") or s.op == "gelu_"])
