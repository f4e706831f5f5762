"""What the host code of the Metal backend does beside computing: names, threads, aligned and unaligned tensors."""

from __future__ import annotations

import concurrent.futures
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


def test_threads() -> None:
    """Kernels are launched, and first looked up, from several threads at once."""

    def work(name: str) -> bool:
        x = torch.randn(64, device="mps")
        first = getattr(ops, name)(x).cpu()
        return all(torch.equal(getattr(ops, name)(x).cpu(), first) for _ in range(20))

    names = ["mish", "selu", "tanh"] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, names))


def test_wrong_device() -> None:
    x = torch.randn(3, 4, device="mps")
    with pytest.raises(RuntimeError, match=r"bias is on cpu, but input is on mps:0"):
        ops.bias_act(x, torch.randn(4), "silu")


def test_source_is_whole() -> None:
    """The text that Metal compiles has all that the kernels include, once, and nothing to include of ours."""
    embed = runpy.run_path(str(ROOT / "src/backends/metal/embed.py"))
    for path in (ROOT / "src/backends/metal/kernels").glob("*.metal"):
        text = embed["inlined"](path, ROOT / "src", set())
        assert not re.search(r'#\s*include\s+"', text)
        assert text.count("struct RowArguments {") == 1


def test_example() -> None:
    command = [sys.executable, ROOT / "examples/mps_softshrink.py", "--rows", "64"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "kernels of fastops: 3 x fastops_bias_softshrink_float, 1 x fastops_bias_identity_float" in result.stdout
    assert "The losses agree." in result.stdout
