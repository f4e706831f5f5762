"""Bad input: which error is raised, that it names the argument, and that nothing is written."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from calls import ARGUMENTS, Make, call, raises, replaced, tensor_arguments
from reference import ACTIVATIONS
from strategies import DTYPES

ops = torch.ops.fastops

EACH_TENSOR = [(op, name) for op in ARGUMENTS for name, _ in tensor_arguments(op)]
each_tensor = pytest.mark.parametrize(("op", "argument"), EACH_TENSOR)
each_of_several_tensors = pytest.mark.parametrize(
    ("op", "argument"), [case for case in EACH_TENSOR if case[0] != "gated_act"]
)


@pytest.fixture(params=["real", "meta", "with gradient"])
def make(request: pytest.FixtureRequest, device: Any) -> Make:
    """Makes tensors on the device, on the meta device, or with requires_grad: the errors must be the same."""

    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        made = torch.ones(shape, dtype=dtype, device="meta" if request.param == "meta" else device)
        return made.requires_grad_(request.param == "with gradient" and dtype.is_floating_point)

    return tensor


# ---- tensors ----


@pytest.mark.parametrize("op", ARGUMENTS)
def test_good_arguments(op: str, make: Make) -> None:
    """The calls that the tests below break do work."""
    call(op, ARGUMENTS[op](make))


@each_tensor
def test_unsupported_dtype(op: str, argument: str, make: Make) -> None:
    """Integers, booleans and complex numbers are refused in every argument."""
    arguments = ARGUMENTS[op](make)
    for dtype in (torch.int32, torch.bool, torch.complex64):
        bad = make(*dict(tensor_arguments(op))[argument].shape, dtype=dtype)
        with raises(TypeError, op, argument):
            call(op, replaced(arguments, argument, bad))


@each_of_several_tensors
def test_mixed_dtypes(op: str, argument: str, make: Make) -> None:
    """All tensors must have one dtype: nothing is promoted."""
    bad = make(*dict(tensor_arguments(op))[argument].shape, dtype=DTYPES[-1])
    with raises(TypeError, op, argument):
        call(op, replaced(ARGUMENTS[op](make), argument, bad))


@each_of_several_tensors
def test_mixed_devices(op: str, argument: str, make: Make, device: Any) -> None:
    """All tensors must be on one device."""
    other = torch.ones(dict(tensor_arguments(op))[argument].shape, device=device if make(1).is_meta else "meta")
    with raises(RuntimeError, op, argument):
        call(op, replaced(ARGUMENTS[op](make), argument, other))


@each_tensor
def test_sparse(op: str, argument: str, make: Make) -> None:
    """Sparse tensors are refused in every argument."""
    place = make(1).device
    if place.type == "mps":
        pytest.skip("not every PyTorch has sparse tensors there")
    bad = torch.ones(dict(tensor_arguments(op))[argument].shape).to_sparse().to(place)
    with raises(TypeError, op, argument):
        call(op, replaced(ARGUMENTS[op](make), argument, bad))


@each_tensor
def test_nested(op: str, argument: str, make: Make) -> None:
    """Nested tensors are refused in every argument; of jagged ones, PyTorch itself sees to the elementwise ops."""
    place = make(1)
    if place.device.type not in ("cpu", "cuda"):
        pytest.skip("PyTorch has nested tensors on CPU and CUDA alone")
    arguments = ARGUMENTS[op](make)
    # activation_backward is tagged as elementwise: with jagged tensors no kernel of ours is called.
    for layout in (torch.strided, torch.jagged)[: 1 if op == "activation_backward" else 2]:
        bad = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=layout, device=place.device)
        with torch.inference_mode(), raises(TypeError, op, argument):
            call(op, replaced(arguments, argument, bad))
        with raises(TypeError, op, argument):
            call(op, replaced(arguments, argument, bad.requires_grad_(place.requires_grad)))


# ---- activations and their parameters ----

EACH_ACTIVATION_ARGUMENT = [
    (op, activation, activation.replace("activation", "params"))
    for op in ARGUMENTS
    for activation in ("activation", "output_activation")
    if activation in ARGUMENTS[op](torch.empty)
]
each_activation_argument = pytest.mark.parametrize(("op", "activation", "params"), EACH_ACTIVATION_ARGUMENT)


@each_activation_argument
def test_unknown_activation(op: str, activation: str, params: str, make: Make) -> None:
    """The message quotes the name and lists all that there are."""
    arguments = replaced(ARGUMENTS[op](make), activation, "swish")
    prefix = "output_activation" if activation.startswith("output") else ""
    with raises(ValueError, op, prefix) as caught:
        call(op, arguments)
    assert "'swish'" in str(caught.value)
    assert ", ".join(ACTIVATIONS) in str(caught.value)


BAD_PARAMETERS = [
    ("gelu", [1.0], "gelu"),
    ("softplus", [1.0], "beta.*threshold"),
    ("softshrink", [1.0, 2.0], "lambd"),
    ("softshrink", [-0.5], "lambd >= 0.*-0.5"),
    ("softshrink", [math.nan], "lambd >= 0.*nan"),
    ("hardtanh", [1.0, -1.0], "min_val <= max_val.*min_val=1, max_val=-1"),
    ("hardtanh", [math.nan, 1.0], "min_val <= max_val"),
]
BAD_PARAMETERS = [case for case in BAD_PARAMETERS if case[0] in ACTIVATIONS]  # tools/gpu/few_activations.py


@each_activation_argument
def test_bad_parameters(op: str, activation: str, params: str, make: Make) -> None:
    """A wrong number of parameters or an invalid one: the message says what the activation needs."""
    for name, values, text in BAD_PARAMETERS:
        arguments = replaced(replaced(ARGUMENTS[op](make), activation, name), params, values)
        with raises(ValueError, op, "") as caught:
            call(op, arguments)
        assert re.search(text, str(caught.value))
        if len(values) != len(ACTIVATIONS[name]["parameters"]):
            assert re.search(rf"\b{params}\b", str(caught.value))


@pytest.mark.parametrize(
    ("name", "values", "text"), [case for case in BAD_PARAMETERS if ">=" in case[2] or "<=" in case[2]]
)
@pytest.mark.parametrize("form", ["functional", "in place", "out"])
def test_bad_parameters_of_plain_op(form: str, name: str, values: list[float], text: str, make: Make) -> None:
    """The same in the three forms of the plain op, which leave their argument as it was."""
    x, out = make(3, 4).detach(), make(3, 4).detach()
    calls = {
        "functional": lambda: getattr(ops, name)(x, *values),
        "in place": lambda: getattr(ops, f"{name}_")(x, *values),
        "out": lambda: getattr(ops, name).out(x, *values, out=out),
    }
    with raises(ValueError, name, "") as caught:
        calls[form]()
    assert re.search(text, str(caught.value))
    assert x.is_meta or ((x == 1).all() and (out == 1).all())


# ---- shapes ----

BAD_SHAPES = [
    ("activation_backward", "grad_output", (1, 4)),
    ("bias_act", "bias", (3,)),
    ("bias_act", "bias", (1, 4)),
    ("bias_act", "bias", ()),
    ("bias_act", "self", ()),
    ("bias_act.out", "bias", (3,)),
    ("bias_act.out", "out", (3, 3)),
    ("bias_act_backward", "grad_output", (4,)),
    ("bias_act_backward", "bias", (3,)),
    ("act_mul", "up", (1, 4)),
    ("act_mul", "up", (3, 4, 1)),
    ("act_mul_backward", "grad_output", (3, 1)),
    ("act_mul_backward", "up", (4, 3)),
    ("gated_act", "self", (4, 3)),
    ("gated_act", "self", ()),
    ("gated_act_backward", "grad_output", (3, 4)),
    ("gated_act_backward", "self", (3, 5)),
    ("linear_act", "input", ()),
    ("linear_act", "weight", (4, 2)),
    ("linear_act", "weight", (4,)),
    ("linear_act", "weight", (1, 2, 4)),
    ("linear_act", "bias", (4,)),
    ("linear_act", "bias", (1, 2)),
    *[
        (op, argument, shape)
        for op in ("mlp", "mlp_forward", "mlp_backward")
        for argument, shape in [
            ("input", ()),
            ("weights[0]", (5, 3)),
            ("weights[0]", (4,)),
            ("weights[1]", (2, 4)),
            ("biases[0]", (2,)),
            ("biases[1]", (2, 1)),
        ]
    ],
    ("mlp_backward", "grad_output", (3, 5)),
    ("mlp_backward", "output", (3, 5)),
    ("mlp_backward", "saved[0]", (3, 2)),
    *[
        (op, argument, shape)
        for op in ("gated_mlp", "gated_mlp_forward", "gated_mlp_backward")
        for argument, shape in [
            ("input", ()),
            ("gate_weight", (5, 3)),
            ("up_weight", (5, 3)),
            ("up_weight", (6, 4)),
            ("down_weight", (2, 4)),
            ("down_weight", (5,)),
            ("gate_bias", (4,)),
            ("up_bias", (1, 5)),
        ]
    ],
    ("gated_mlp", "down_bias", (5,)),
    ("gated_mlp_backward", "grad_output", (3, 5)),
    ("gated_mlp_backward", "gate", (3, 4)),
    ("gated_mlp_backward", "up", (5, 3)),
]


@pytest.mark.parametrize(("op", "argument", "shape"), BAD_SHAPES)
def test_bad_shape(op: str, argument: str, shape: tuple[int, ...], make: Make) -> None:
    """Shapes that do not fit: nothing is broadcast or cut."""
    arguments = ARGUMENTS[op](make)
    with raises(ValueError, op, argument):
        call(op, replaced(arguments, argument, make(*shape)))
    if "out" in arguments and not arguments["out"].is_meta:
        assert (arguments["out"] == 1).all()


BAD_LENGTHS = [
    *[(op, "weights", slice(0, 0)) for op in ("mlp", "mlp_forward", "mlp_backward")],
    *[(op, "biases", slice(0, 1)) for op in ("mlp", "mlp_forward", "mlp_backward")],
    *[(op, "biases", slice(0, 0)) for op in ("mlp", "mlp_forward", "mlp_backward")],
    ("mlp_backward", "saved", slice(0, 0)),
    ("mlp_backward", "output_mask", slice(0, 4)),
]


@pytest.mark.parametrize(("op", "argument", "part"), BAD_LENGTHS)
def test_bad_length(op: str, argument: str, part: slice, make: Make) -> None:
    """Lists that are empty or do not have an entry for each layer."""
    arguments = ARGUMENTS[op](make)
    with raises(ValueError, op, argument):
        call(op, {**arguments, argument: arguments[argument][part]})


def test_missing_output(make: Make) -> None:
    """mlp_backward needs the output where the derivative is had from it."""
    with raises(ValueError, "mlp_backward", "output"):
        call("mlp_backward", {**ARGUMENTS["mlp_backward"](make), "output": None})


def test_output_not_needed(make: Make) -> None:
    """Where it is not, it must fit all the same."""
    with raises(ValueError, "mlp_backward", "output"):
        changed = {"output_activation": "identity", "output_params": [], "output": make(3, 5)}
        call("mlp_backward", {**ARGUMENTS["mlp_backward"](make), **changed})


@pytest.mark.parametrize("order", [0, 4, -1])
def test_bad_order(order: int, make: Make) -> None:
    """activation_backward has derivatives of orders 1 to 3."""
    with raises(ValueError, "activation_backward", "order"):
        call("activation_backward", {**ARGUMENTS["activation_backward"](make), "order": order})


@pytest.mark.parametrize(("name", "params"), [("gelu", []), ("leaky_relu", [-0.5]), ("elu", [-0.5]), ("hardtanh", [])])
def test_derivative_not_from_output(name: str, params: list[float], make: Make) -> None:
    """Where the output does not tell the derivative, asking for it from the output is an error."""
    changed = {"activation": name, "params": params, "from_output": True}
    for op in ("activation_backward", "bias_act_backward"):
        with (
            torch.no_grad(),
            pytest.raises(ValueError, match=f"{name} cannot be had from its output.*from_output=False"),
        ):
            call(op, {**ARGUMENTS[op](make), **changed})
