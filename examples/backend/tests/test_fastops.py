"""fastops' ops on the device: with its kernels and without. The values are for the main project's tests."""

import json
import os
import subprocess
import sys

import pytest
import torch

import fastops


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def test_info() -> None:
    """fastops.info() lists the backend, and every op as native."""
    info = fastops.info()
    assert info.backends["hostmem"].startswith("loaded from torch-hostmem ")
    assert "backend hostmem: loaded from torch-hostmem" in str(info)
    missing = [op for op, devices in info.native.items() if not devices["hostmem"]]
    assert not missing


def test_without_kernels() -> None:
    """FASTOPS_BACKEND_AUTOLOAD=0 leaves the kernels out: the ops run through PyTorch's."""
    code = (
        "import json, torch, fastops; i = fastops.info(); "
        "y = fastops.functional.silu(torch.ones(2, device='hostmem')); "
        "print(json.dumps([i.backends, [op for op, d in i.native.items() if d['hostmem']], y.tolist()]))"
    )
    run = run_python(code, FASTOPS_BACKEND_AUTOLOAD="0")
    assert json.loads(run.stdout) == [{}, [], pytest.approx([0.7310586] * 2)], run.stderr


@pytest.mark.parametrize("op", ["silu", "mlp", "gated_mlp"])
def test_fallback_error(op: str) -> None:
    """Without the kernels, FASTOPS_FALLBACK=error names the op; with them nothing is said."""
    calls = {
        "silu": "fastops.functional.silu(x)",
        "mlp": "fastops.functional.mlp(x, [x], None, activation='silu')",
        "gated_mlp": "fastops.functional.gated_mlp(x, x, x, x)",
    }
    code = f"import torch, fastops; x = torch.ones(2, 2, device='hostmem'); {calls[op]}"
    native = run_python(code, FASTOPS_FALLBACK="error", FASTOPS_BACKEND_AUTOLOAD="1")
    assert native.returncode == 0 and not native.stderr, native.stderr
    composite = run_python(code, FASTOPS_FALLBACK="error", FASTOPS_BACKEND_AUTOLOAD="0")
    assert f"NotImplementedError: fastops.{op} has no kernel of its own for hostmem tensors" in composite.stderr


def test_autocast() -> None:
    """fastops' own rule: ops with products run in the lower dtype, the others in their input's."""
    x = torch.randn(4, 4, device="hostmem")
    with torch.autocast("hostmem", torch.bfloat16):
        assert fastops.functional.linear_act(x, x, None, activation="silu").dtype is torch.bfloat16
        assert fastops.functional.mlp(x, [x, x], None, activation="silu").dtype is torch.bfloat16
        assert fastops.functional.silu(x).dtype is torch.float32


@pytest.mark.parametrize(
    "module", [torch.nn.SiLU(), torch.nn.Softshrink(0.2), torch.nn.Softshrink()], ids=["silu", "softshrink", "default"]
)
def test_pytorch_activations(module: torch.nn.Module) -> None:
    """PyTorch's own modules run through fastops, forward and backward, and give PyTorch's values."""
    x = torch.randn(100, requires_grad=True)
    on_device = x.detach().to("hostmem").requires_grad_()
    expected, result = module(x), module(on_device)
    assert type(result.grad_fn).__name__ != type(expected.grad_fn).__name__
    torch.testing.assert_close(result.cpu(), expected)
    (slope,) = torch.autograd.grad(expected.square().sum(), x, create_graph=True)
    (device_slope,) = torch.autograd.grad(result.square().sum(), on_device, create_graph=True)
    torch.testing.assert_close(device_slope.cpu(), slope)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    (device_curvature,) = torch.autograd.grad(device_slope.sum(), on_device)
    torch.testing.assert_close(device_curvature.cpu(), curvature)
    with torch.inference_mode():
        torch.testing.assert_close(module(on_device).cpu(), module(x))
