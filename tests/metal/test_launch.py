"""What the host code of the Metal backend does beside computing: names, threads, aligned and unaligned tensors."""

from __future__ import annotations

import concurrent.futures
import ctypes
import mmap
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import kernels
import pytest
import torch
import translate

import fastops

ROOT = Path(__file__).parents[2]
ops = torch.ops.fastops


def launched(function) -> list[str]:
    """The kernels that a call launches, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        function()
    return [event.name for event in profiler.events() if event.name.startswith("fastops_")]


def test_every_op_is_native() -> None:
    native = fastops.info().native
    assert all(devices["mps"] for devices in native.values()), native


def test_one_kernel_for_an_activation() -> None:
    x = torch.randn(5, 7, device="mps", dtype=torch.float16)
    assert launched(lambda: ops.softshrink(x, 0.5)) == ["fastops_softshrink_half"]
    assert launched(lambda: ops.softshrink(x.t()[1:], 0.5)) == ["fastops_softshrink_half"]
    assert launched(lambda: ops.activation_backward(x, x, "gelu", order=2)) == ["fastops_gelu_backward2_half"]


def test_one_kernel_for_a_layer() -> None:
    mlp = fastops.nn.MLP(5, [7, 3], 2, activation="gelu", device="mps")
    x = torch.randn(11, 5, device="mps")
    forward = ["fastops_bias_gelu_float"] * 2 + ["fastops_bias_identity_float"]
    with torch.no_grad():
        assert launched(lambda: mlp(x)) == forward
    loss = mlp(x).sum()
    # A layer's output is computed again for the gradient of the next layer's weight.
    assert launched(loss.backward).count("fastops_bias_gelu_backward_float") == 2


def test_bias_gradient_takes_a_second_kernel_for_many_rows() -> None:
    def backward(rows: int) -> list[str]:
        x = torch.randn(rows, 3, device="mps")
        return launched(lambda: ops.bias_act_backward(x, x, None, "silu", [], False, [True, True]))

    assert backward(256) == ["fastops_bias_silu_backward_float"]
    assert backward(257) == ["fastops_bias_silu_backward_float", "fastops_column_sums_float"]


@pytest.mark.parametrize("rows", [3, 300, 20_000])
def test_bias_gradient_is_the_same_in_every_run(rows: int) -> None:
    x = torch.randn(rows, 5, device="mps")
    sums = [ops.bias_act_backward(x, x, None, "silu", [], False, [False, True])[0] for _ in range(3)]
    assert all(torch.equal(total, sums[0]) for total in sums)


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("columns", [4, 5, 8])
def test_alignment(offset: int, columns: int) -> None:
    """Vector accesses are used where the tensor's place allows them and nowhere else: the results are the same."""
    storage = torch.randn(200, device="mps")
    x = storage.as_strided((6, columns), (columns + 4, 1), offset)
    bias = storage.as_strided((columns,), (1,), 100 + offset)
    expected = torch.nn.functional.silu(x.cpu() + bias.cpu())
    torch.testing.assert_close(ops.bias_act(x, bias, "silu").cpu(), expected)
    torch.testing.assert_close(ops.act_mul(x, x, "silu").cpu(), torch.nn.functional.silu(x.cpu()) * x.cpu())


def test_nine_dimensions() -> None:
    """More dimensions than the kernels take."""
    x = torch.randn(*[2] * 20, device="mps")[(slice(None), 0) * 10]
    assert x.dim() == 10
    torch.testing.assert_close(ops.silu(x).cpu(), torch.nn.functional.silu(x.cpu()))
    out = torch.empty_like(x)
    assert ops.silu.out(x, out=out) is out
    torch.testing.assert_close(out.cpu(), torch.nn.functional.silu(x.cpu()))


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("innermost", [1, 3, 8])
def test_dimensions(dims: int, innermost: int) -> None:
    """Tensors of which no two dimensions can be put together, with and without aligned quads."""
    sizes = [3, 2, 2, 3, 2, 1, 2][: dims - 1] + [innermost]
    larger = [size + 4 for size in sizes]
    x, grad, y = (torch.randn(larger, device="mps")[tuple(slice(2, 2 + size) for size in sizes)] for _ in range(3))
    storage = y.as_strided([y.untyped_storage().nbytes() // 4], [1], 0)
    expected = storage.cpu().clone()
    expected.as_strided(y.size(), y.stride(), y.storage_offset()).copy_(torch.nn.functional.silu(x.cpu()))
    ops.silu.out(x, out=y)
    torch.testing.assert_close(storage.cpu(), expected)
    leaf = x.cpu().clone().requires_grad_()
    (expected_grad,) = torch.autograd.grad(torch.nn.functional.silu(leaf), leaf, grad.cpu())
    torch.testing.assert_close(ops.activation_backward(grad, x, "silu").cpu(), expected_grad)


class ElementwiseArguments(ctypes.Structure):
    """The struct in kernels/arguments.h."""

    _fields_ = (
        ("params", ctypes.c_float * 2),
        ("from_output", ctypes.c_uint32),
        ("vectors", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
        ("dims", ctypes.c_uint32),
        ("narrow", ctypes.c_uint32),
        ("sizes", ctypes.c_uint32 * 8),
        ("strides", ctypes.c_int64 * 8 * 3),
    )


def test_far_apart() -> None:
    """Elements more than 2**31 and 2**32 elements apart, in memory that is taken as it is touched."""
    library = ctypes.CDLL(os.environ["FASTOPS_METAL_KERNELS"])
    library.metal_find_kernel.restype = ctypes.c_void_p
    library.metal_launch.restype = ctypes.c_char_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    stride, sizes = 2**31 + 64, (5, 3, 2)
    memory = mmap.mmap(-1, 4 * (4 * stride), flags=flags)
    x = torch.frombuffer(memory, dtype=torch.float32).as_strided(sizes[::-1], (stride, stride // 2, 1))
    x.copy_(torch.randn(sizes[::-1]))
    y = torch.full(sizes[::-1], torch.nan)
    to = ElementwiseArguments(count=5, dims=3, narrow=0)
    to.sizes[:3] = sizes
    to.strides[0][:3] = x.stride()[::-1]
    to.strides[1][:3] = y.stride()[::-1]
    kernel = ctypes.c_void_p(library.metal_find_kernel(b"fastops_relu_float"))
    buffers = (ctypes.c_void_p * 3)(x.data_ptr(), y.data_ptr(), ctypes.addressof(to))
    grid, group = (ctypes.c_uint * 3)(2, 3, 2), (ctypes.c_uint * 3)(2, 4, 2)
    assert library.metal_launch(kernel, buffers, grid, group) is None
    assert torch.equal(y, x.relu())


def test_threads() -> None:
    """Kernels are launched, and first looked up, from several threads at once."""

    def work(name: str) -> bool:
        x = torch.randn(64, device="mps")
        first = getattr(ops, name)(x).cpu()
        return all(torch.equal(getattr(ops, name)(x).cpu(), first) for _ in range(20))

    names = ["mish", "selu", "tanh"] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, names))


CALLBACKS = """
import ctypes, pathlib, torch, fastops
library = ctypes.CDLL(str(pathlib.Path(fastops.library_path()).parent / "libfake_mps.so"))
library.metal_call_ops_around_launches()
torch.ops.fastops.relu(torch.ones(3, device="mps"))
print(library.metal_calls_around_launches())
"""


def test_callbacks_that_call_ops() -> None:
    """What observes launches, such as a profiler, may call ops: nothing is locked meanwhile."""
    command = [sys.executable, "-c", CALLBACKS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "2\n"


def test_wrong_device() -> None:
    x = torch.randn(3, 4, device="mps")
    with pytest.raises(RuntimeError, match=r"bias is on cpu, but input is on mps:0"):
        ops.bias_act(x, torch.randn(4), "silu")


INFERENCE = """
mlp = fastops.nn.MLP(5, [7], 3, activation="gelu", device="mps")
gated = fastops.nn.GatedMLP(5, 7, activation="gelu", device="mps")
with torch.no_grad():
    x = torch.randn(300, 5, device="mps")
    mlp(x), gated(x), fastops.functional.gelu(x)
"""
DERIVATIVES = """
ops = torch.ops.fastops
for order in (1, 2, 3):
    ops.activation_backward(x, x, "gelu", [], order=order)
ops.bias_act_backward(x, x, None, "gelu", [], False, [True, True])
ops.act_mul_backward(x, x, x, "gelu", [], [True, True])
"""


def compiled_sources(folder: Path, code: str, **environment: str) -> dict[str, str]:
    """What a program lets Metal compile: the text of each library by the name of the kernel that it is for."""
    variables = {**os.environ, "FASTOPS_METAL_SOURCES": str(folder), **environment}
    command = [sys.executable, "-c", "import torch, fastops\n" + code]
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {path.stem: path.read_text() for path in folder.glob("*.metal")}


def test_inference_compiles_no_derivatives(tmp_path: Path) -> None:
    sources = compiled_sources(tmp_path, INFERENCE)
    assert len(sources) == 4
    assert not [name for name in sources if "backward" in name]
    assert not [name for name, text in sources.items() if "struct Jet" in text]


@pytest.mark.parametrize("linear", "01")
def test_a_library_has_one_kernel(tmp_path: Path, linear: str) -> None:
    """What Metal compiles is legal, and there is no kernel in it but the one that is wanted."""
    sources = compiled_sources(tmp_path, INFERENCE + DERIVATIVES, FASTOPS_METAL_LINEAR=linear)
    assert len(sources) >= 8
    for name in sources:
        path = tmp_path / f"{name}.metal"
        kernels.check(path)
        text = translate.flatten(path, [], ROOT / "src")
        assert [host_name for host_name, *_ in translate.find_instances(text, translate.find_kernels(text))] == [name]


def test_source_is_whole() -> None:
    """The text that Metal compiles has all that the kernels include, once, and nothing to include of ours."""
    embed = runpy.run_path(str(ROOT / "src/backends/metal/embed.py"))
    for path in (ROOT / "src/backends/metal/kernels").glob("*.metal"):
        text = embed["inlined"](path, ROOT / "src", set())
        assert not re.search(r'#\s*include\s+"', text)
        assert text.count("struct RowArguments {") == 1
        assert text.count("define FASTOPS_KERNEL(") == 1


def test_example() -> None:
    command = [sys.executable, ROOT / "examples/mps_softshrink.py", "--rows", "64"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "kernels of fastops: 3 x fastops_bias_softshrink_float, 1 x fastops_bias_identity_float" in result.stdout
    assert "The losses agree." in result.stdout
