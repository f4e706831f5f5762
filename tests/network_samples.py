"""Sample calls of the ops with matrix products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from expected import (
    activation,
    gated_mlp_reference,
    mlp_jet_reference,
    mlp_reference,
    of_members,
    sequential_reference,
    split_layers,
    vector_jacobian,
)
from reference import GRADIENT_FROM_OUTPUT
from sample import Sample, Shape, detached


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
    """With and without second derivatives, each, of pairs or their sum, with weights or without."""
    cases = [
        ("tanh", "identity", (3, 4, 2), (True, False), (2,), (2, 1), [], ()),
        ("gelu", "sigmoid", (2, 3, 2), (True, True), (2, 2), (2, 2), [], ()),
        ("gelu", "tanh", (2, 3, 2), (True, True), (2,), (2, 3), [], ()),
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


def sequential_samples() -> Iterator[Sample]:
    """Every kind of step; with and without the tensors that may be absent; one residual in another."""
    seed = -0x123456789ABCDEF
    cases: list[tuple[str, str, list[float], tuple[int, ...], Shape, list[Shape | None]]] = [
        ("norms", "linear rms_norm silu linear layer_norm tanh", [1e-6, 1e-5], (2,), (3,),
         [(4, 3), (4,), (4,), (2, 4), (2,), None, None]),
        ("block", "residual layer_norm linear gelu dropout linear dropout scale add", [1e-5, 0.3, 0.2], (3,), (2, 2),
         [(3,), (3,), (4, 3), (4,), (3, 4), None, (3,)]),
        ("nested", "residual mish residual linear sigmoid add rms_norm linear add", [1e-5], (3,), (),
         [(3, 3), None, None, (3, 3), (3,)]),
        ("gated", "residual rms_norm gated_linear silu dropout linear add", [1e-5, 0.2], (3,), (2,),
         [(3,), (4, 3), (4,), (4, 3), None, (3, 4), None]),
        ("rows", "dropout layer_norm softplus", [0.5, 1e-5, 1.0, 20.0], (3,), (2,), [(3,), None]),
    ]  # fmt: skip
    for label, steps, params, outputs, leading, sizes in cases:
        shapes = ((*leading, 3), *(size for size in sizes if size is not None))
        reference = sequential_reference(steps, params, seed)
        present = [True, *(size is not None for size in sizes)]

        def padded(*tensors: Tensor, present: Any = present) -> list[Tensor | None]:
            rest = iter(tensors)
            return [next(rest) if is_there else None for is_there in present]

        def arguments(
            *tensors: Tensor, padded: Any = padded, steps: str = steps, params: Sequence[float] = params
        ) -> tuple:
            x, *parameters = padded(*tensors)
            has_dropout = "dropout" in steps
            return x, parameters, steps, params, torch.tensor(seed, device=x.device) if has_dropout else None

        expected = lambda *tensors, reference=reference, padded=padded: reference(*padded(*tensors))  # noqa: E731
        yield Sample("sequential", label, shapes, arguments, expected)
        first = lambda result: result[0]  # noqa: E731
        yield Sample("sequential_forward", label, shapes, arguments, expected, outputs=first)

        def backward_arguments(
            grad: Tensor, *tensors: Tensor, arguments: Any = arguments, mask: Any = present
        ) -> tuple:
            x, parameters, *rest = arguments(*tensors)
            _, saved = detached(torch.ops.fastops.sequential_forward, x, parameters, *rest)
            return (grad, x, parameters, saved, *rest, mask)

        yield Sample(
            "sequential_backward",
            label,
            ((*leading, *outputs), *shapes),
            backward_arguments,
            vector_jacobian(expected, [True] * len(shapes)),
        )
