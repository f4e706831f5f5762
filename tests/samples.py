"""One table of sample calls of every op, each with the plain-PyTorch function that it must equal.

The tests of derivatives, transforms and registrations iterate over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from expected import activation, derivative, slope_from_output, vector_jacobian
from network_samples import (
    gated_mlp_samples,
    linear_act_samples,
    mlp_jet_samples,
    mlp_samples,
    sequential_samples,
)
from reference import ACTIVATIONS, GRADIENT_FROM_OUTPUT, parameter_sets
from sample import Sample
from strategies import PROFILE


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


SAMPLES = [
    *plain_samples(),
    *activation_backward_samples(),
    *bias_act_samples(),
    *gated_act_samples(),
    *linear_act_samples(),
    *mlp_samples(),
    *mlp_jet_samples(),
    *gated_mlp_samples(),
    *sequential_samples(),
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
