"""What the memory behind an argument may be: freed, shared until it is written to, misaligned, or to be negated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calls import ARGUMENTS, call, raises, replaced, tensor_arguments
from checks import assert_same_bits
from samples import each_activation
from strategies import DEVICE, random_tensor

ops = torch.ops.fastops

EACH_TENSOR = [(op, name) for op in ARGUMENTS for name, _ in tensor_arguments(op)]
each_tensor = pytest.mark.parametrize(("op", "argument"), EACH_TENSOR)
each_input = pytest.mark.parametrize(("op", "argument"), [case for case in EACH_TENSOR if case[1] != "out"])

has_lazy_clones = pytest.mark.skipif(DEVICE not in ("cpu", "cuda"), reason="PyTorch clones lazily on CPU and CUDA")


def random_arguments(op: str, device: Any) -> dict[str, Any]:
    """Good arguments whose tensors have different numbers, none of them zero."""
    seeds = itertools.count()
    return ARGUMENTS[op](lambda *shape: random_tensor(shape, torch.float32, device, next(seeds)))


def value_of(arguments: dict[str, Any], argument: str) -> Tensor:
    """The argument, which may be ``name[index]``."""
    name, _, index = argument.partition("[")
    return arguments[name][int(index[:-1])] if index else arguments[name]


def flat(results: Any) -> list[Tensor]:
    """The tensors among an op's results."""
    return [results] if isinstance(results, Tensor) else [tensor for result in results for tensor in flat(result)]


def assert_same_results(actual: Any, expected: Any) -> None:
    """The results of two calls have the same bits."""
    for a, e in zip(flat(actual), flat(expected), strict=True):
        assert_same_bits(a, e)


# ---- freed ----


def freed(tensor: Tensor, held: int = 0) -> Tensor:
    """The tensor after its storage was resized to so many bytes, as FSDP does with parameters that are not in use."""
    if tensor.device.type == "mps":
        pytest.skip("PyTorch resizes no storage of mps")
    tensor.untyped_storage().resize_(held)
    return tensor


@pytest.mark.parametrize("needs_grad", [False, True])
@each_tensor
def test_freed(op: str, argument: str, needs_grad: bool, device: Any) -> None:
    """A freed tensor is an error that names the argument, whether or not there is a gradient to keep something for."""
    arguments = ARGUMENTS[op](lambda *shape: torch.ones(shape, device=device, requires_grad=needs_grad))
    freed(value_of(arguments, argument).detach())
    with raises(RuntimeError, op, f"{argument} has shape"):
        call(op, arguments)


@each_tensor
def test_too_small(op: str, argument: str, device: Any) -> None:
    """So is one whose last element lies beyond the end of its storage; the one before the end is no error."""
    arguments = ARGUMENTS[op](lambda *shape: torch.ones(shape, device=device))
    tensor = value_of(arguments, argument)
    wide = torch.ones(2 * tensor.numel() + 1, device=device)
    spread = wide[1:].view(*tensor.shape, 2)[..., 0]
    call(op, replaced(arguments, argument, spread))
    freed(wide, held=8 * tensor.numel())
    call(op, replaced(arguments, argument, spread))
    freed(wide, held=8 * tensor.numel() - 4)
    with raises(RuntimeError, op, f"{argument} has shape"):
        call(op, replaced(arguments, argument, spread))


@each_activation
def test_freed_argument_of_plain_op(name: str, device: Any) -> None:
    """In every form, with and without gradients."""

    def ones(requires_grad: bool = False) -> Tensor:
        return torch.ones(3, 4, device=device, requires_grad=requires_grad)

    plain, in_place = getattr(ops, name), getattr(ops, f"{name}_")
    for needs_grad in (False, True):
        for function in (plain, lambda x: in_place(x * 1 if x.untyped_storage().nbytes() else x.detach())):
            with raises(RuntimeError, name, "self has shape"):
                function(freed(ones(needs_grad)))
    with raises(RuntimeError, name, "self has shape"):
        in_place(freed(ones(requires_grad=True).clone()))
    with raises(RuntimeError, name, "self has shape"):
        plain.out(freed(ones()), out=ones())
    with raises(RuntimeError, name, "out has shape"):
        plain.out(ones(), out=freed(ones()))


TRANSFORMED: dict[str, Callable[[Tensor], Any]] = {
    "vmap": lambda x: torch.vmap(ops.bias_act, (0, None, None))(x, torch.ones(4), "relu"),
    "vmap over biases": lambda x: torch.vmap(ops.bias_act, (None, 0, None))(torch.ones(3, 4), x, "relu"),
    "vmap over weights": lambda x: torch.vmap(lambda w: ops.mlp(torch.ones(3, 4), [w], [None], "relu"))(x),
    "vmap in place": lambda x: torch.vmap(ops.relu_)(x),
    "vmap of vmap": lambda x: torch.vmap(torch.vmap(ops.relu_))(x),
    "grad": lambda x: torch.func.grad(lambda x: ops.gelu(x).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_freed_under_transforms(transform: str, device: Any) -> None:
    """The wrappers of torch.func are looked through."""
    shape = (2, 4) if transform == "vmap over biases" else (2, 3, 4)
    with torch.device(device), pytest.raises(RuntimeError, match=r"fastops\.\w+: .* has shape .* been freed"):
        TRANSFORMED[transform](freed(torch.ones(shape)))


@pytest.mark.parametrize("op", ["linear_act", "mlp", "gated_mlp", "act_mul", "bias_act"])
def test_freed_under_autocast(op: str, device: Any) -> None:
    """Arguments are looked at before they are cast."""
    for argument, _ in tensor_arguments(op):
        arguments = ARGUMENTS[op](lambda *shape: torch.ones(shape, device=device))
        if op == "bias_act":
            arguments["self"] = arguments["self"].bfloat16()
        freed(value_of(arguments, argument))
        with torch.autocast(device.type, torch.bfloat16), raises(RuntimeError, op, f"{argument} has shape"):
            call(op, arguments)


MLP = ["input", "weights[0]", "weights[1]", "biases[0]", "biases[1]"]
GATED_MLP = ["input", "gate_weight", "up_weight", "down_weight", "gate_bias", "up_bias"]
# What our nodes keep of the ops' arguments; the derivatives of the other backward ops are those of ops that these call.
KEPT = {
    "activation_backward": ["grad_output", "saved"],
    "bias_act": ["self", "bias"],
    "act_mul": ["gate", "up"],
    "act_mul_backward": ["grad_output", "gate", "up"],
    "gated_act": ["self"],
    "linear_act": ["input", "weight", "bias"],
    "mlp": MLP,
    "mlp_forward": MLP,
    "mlp_backward": ["grad_output", *MLP],
    "gated_mlp": GATED_MLP,
    "gated_mlp_forward": GATED_MLP,
    "gated_mlp_backward": ["grad_output", *GATED_MLP],
}
# The names that arguments have in the backward op, where they are others.
IN_BACKWARD = {
    ("bias_act", "self"): "saved",
    ("linear_act", "weight"): "weights[0]",
    ("linear_act", "bias"): "biases[0]",
}


@pytest.mark.parametrize(
    ("op", "argument", "checkpoint"),
    [
        (op, argument, checkpoint)
        for op, arguments in KEPT.items()
        for argument in arguments
        for checkpoint in ([False, True] if op in ("mlp", "gated_mlp") else [False])
    ],
)
def test_freed_before_backward(op: str, argument: str, checkpoint: bool, device: Any) -> None:
    """What is freed between two passes is an error of the next, also between the first and the second derivative."""
    arguments = ARGUMENTS[op](lambda *shape: torch.ones(shape, device=device, requires_grad=True))
    results = flat(call(op, {**arguments, "checkpoint": True} if checkpoint else arguments))
    differentiable = [result for result in results if result.requires_grad]
    freed(value_of(arguments, argument).detach())
    with raises(RuntimeError, "a_backward", f"{IN_BACKWARD.get((op, argument), argument)} has shape"):
        torch.autograd.backward(differentiable, [torch.ones_like(result) for result in differentiable])


@each_tensor
def test_no_memory_is_needed(op: str, argument: str, device: Any) -> None:
    """Of tensors without elements, and of those on the meta device, nothing is read."""
    for make in (
        lambda *shape: torch.ones(shape, device="meta"),
        lambda *shape: torch.ones([0 if size == 3 else size for size in shape], device=device),
    ):
        arguments = ARGUMENTS[op](make)
        tensor = value_of(arguments, argument)
        if tensor.is_meta or tensor.numel() == 0:
            freed(tensor)
        call(op, arguments)


# ---- shared until it is written to ----


def is_shared(tensor: Tensor) -> bool:
    """Whether the tensor shares its memory with what it was lazily cloned from."""
    return torch._C._is_cow_tensor(tensor)


@has_lazy_clones
@each_input
def test_lazy_clones_stay_lazy(op: str, argument: str, device: Any) -> None:
    """A lazy clone that is only read is not copied."""
    arguments = random_arguments(op, device)
    lazy = torch._lazy_clone(value_of(arguments, argument))
    results = call(op, replaced(arguments, argument, lazy))
    assert is_shared(lazy)
    assert_same_results(results, call(op, random_arguments(op, device)))


# More than one thread's share.
SHAPE = (300, 1000)

WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "relu.out": lambda x, bias, out: ops.relu.out(x, out=out),
    "bias_act.out": lambda x, bias, out: ops.bias_act.out(x, bias, "gelu", out=out),
    "bias_act.out in place": lambda x, bias, out: ops.bias_act.out(out, bias, "gelu", out=out),
    "gelu.out in place": lambda x, bias, out: ops.gelu.out(out, out=out),
    "silu_": lambda x, bias, out: ops.silu_(out),
}


@has_lazy_clones
@pytest.mark.parametrize("write", WRITES)
def test_lazy_clone_is_written_to(write: str, device: Any, restore_threads: None) -> None:
    """What is written into a lazy clone changes that alone, also where several threads write."""
    torch.set_num_threads(2)
    x, original = (random_tensor(SHAPE, torch.float32, device, seed) for seed in (1, 2))
    bias = random_tensor(SHAPE[1:], torch.float32, device, 3)
    before, expected = original.clone(), original.clone()
    WRITES[write](x, bias, expected)
    lazy = torch._lazy_clone(original)
    WRITES[write](x, bias, lazy)
    assert not is_shared(lazy)
    assert_same_bits(lazy, expected)
    assert_same_bits(original, before)


@has_lazy_clones
def test_lazy_clone_of_the_input(device: Any) -> None:
    """A lazy clone of the input is no part of it: it may be written to."""
    x, bias = random_tensor(SHAPE, torch.float32, device, 1), random_tensor(SHAPE[1:], torch.float32, device, 2)
    expected = ops.bias_act(x, bias, "tanh")
    lazy = torch._lazy_clone(x)
    assert_same_bits(ops.bias_act.out(x, bias, "tanh", out=lazy), expected)
    assert_same_bits(x, random_tensor(SHAPE, torch.float32, device, 1))


# ---- misaligned ----


@pytest.mark.skipif(DEVICE != "cpu", reason="GPUs access no misaligned numbers")
@pytest.mark.parametrize("op", ["relu", "silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1000, 2**22 + 5])
def test_misaligned(op: str, dtype: torch.dtype, count: int) -> None:
    """A result whose address is no multiple of its elements' size; from 16 MiB on it is written past the caches."""
    count = count * 4 // dtype.itemsize
    buffer = bytearray(count * dtype.itemsize + 64)
    out = torch.frombuffer(buffer, dtype=dtype, offset=1, count=count)
    x = random_tensor((count,), torch.float32, "cpu", 1).to(dtype)
    getattr(ops, op).out(x, out=out)
    expected = getattr(ops, op)(x)
    assert torch.equal(out.clone(), expected)
    assert not any(buffer[:1]) and not any(buffer[1 + out.nbytes :])
    out.copy_(x)
    assert torch.equal(getattr(ops, op)(out), expected)


# ---- to be negated, or zeros without memory ----


def negated(tensor: Tensor) -> Tensor:
    """An equal tensor whose memory has the negative numbers, as of the imaginary part of a conjugate."""
    lazy = torch._neg_view(-tensor)
    assert lazy.is_neg()
    return lazy


@each_tensor
def test_negative_bit(op: str, argument: str, device: Any) -> None:
    """A tensor with the negative bit is what it stands for, in every argument."""
    arguments = random_arguments(op, device)
    expected = call(op, random_arguments(op, device))
    lazy = negated(value_of(arguments, argument))
    results = call(op, replaced(arguments, argument, lazy))
    assert_same_results(lazy if argument == "out" else results, expected)


@each_input
def test_zero_tensor(op: str, argument: str, device: Any) -> None:
    """So is one that stands for zeros and has no memory."""
    arguments = random_arguments(op, device)
    tensor = value_of(arguments, argument)
    expected = call(op, replaced(arguments, argument, torch.zeros_like(tensor)))
    zeros = torch._efficientzerotensor(tensor.shape, device=device)
    assert_same_results(call(op, replaced(arguments, argument, zeros)), expected)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_negative_bit_in_training(checkpoint: bool, device: Any) -> None:
    """Gradients pass through weights and biases with the negative bit, whose memory is dense or not."""
    x = random_tensor((3, 4), torch.float32, device, 0)
    shapes = [(5, 4), (5,), (2, 5), (2,)]
    numbers = [random_tensor((*shape, 2), torch.float32, device, seed) for seed, shape in enumerate(shapes)]

    def gradients(parameter: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves = [number.clone().requires_grad_() for number in numbers]
        w0, b0, w1, b1 = map(parameter, leaves)
        y = ops.mlp(x, [w0, w1], [b0, b1], "gelu", "tanh", checkpoint=checkpoint)
        return [y.detach(), *torch.autograd.grad(y.sum(), leaves)]

    for part in (lambda pairs: pairs[..., 0].contiguous(), lambda pairs: torch.view_as_complex(pairs).imag):
        actual = gradients(lambda pairs, part=part: torch._neg_view(part(pairs)))
        expected = gradients(lambda pairs, part=part: -part(pairs))
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e)


def test_every_op_with_optional_tensors_resolves_them() -> None:
    """PyTorch's fallbacks do not look into lists of optional tensors: such an op has kernels of its own for that."""
    with_lists = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("fastops::") and "Optional[Tensor]]" in str(schema_of(name))
    ]
    assert "fastops::mlp" in with_lists
    for name, key in itertools.product(with_lists, ("Negative", "Conjugate", "ZeroTensor")):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), (name, key)


def schema_of(name: str) -> list[str]:
    """The types of an op's arguments."""
    op, _, overload = name.removeprefix("fastops::").partition(".")
    return [str(argument.type) for argument in getattr(getattr(ops, op), overload or "default")._schema.arguments]
