"""Devices, the device guard and torch.accelerator."""

import subprocess
import sys

import pytest
import torch


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", ["torch", "torch_hostmem", "fastops"])
def test_autoload(first: str) -> None:
    """`import torch` is enough, and so is importing this package or fastops first."""
    run = run_python(f"import {first}; import torch; print(torch.ones(2, device='hostmem').device)")
    assert run.stdout.strip() == "hostmem:0", run.stderr
    assert not run.stderr


def test_autoload_off() -> None:
    """PyTorch's variable keeps the device away."""
    code = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch; torch.device('hostmem')"
    assert "hostmem" in run_python(code).stderr


def test_names() -> None:
    """The name in devices, methods and modules."""
    x = torch.rand(2, 2, device="hostmem:0")
    assert x.is_hostmem and not torch.ones(2).is_hostmem
    assert torch.ones(2).hostmem().device == x.device == torch.device("hostmem:0")
    assert torch.ones(2).to("hostmem").is_hostmem
    assert torch.nn.Linear(2, 2).hostmem().weight.is_hostmem
    assert torch.ones(2).untyped_storage().hostmem().device.type == "hostmem"
    assert x.untyped_storage().is_hostmem
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert packed.hostmem().is_hostmem


def test_current_device() -> None:
    """The current device is where tensors without an index go."""
    assert torch.hostmem.is_available() and torch.hostmem.device_count() == 2
    assert torch.hostmem.current_device() == 0
    with torch.hostmem.device(1):
        assert torch.hostmem.current_device() == 1
        assert torch.empty(2, device="hostmem").device.index == 1
        assert torch.ones(2).hostmem().device.index == 1
        with torch.hostmem.device("hostmem:0"):
            assert torch.zeros(2, device="hostmem").device.index == 0
    assert torch.hostmem.current_device() == 0
    torch.hostmem.set_device("hostmem:1")
    assert torch.accelerator.current_device_index() == 1
    torch.hostmem.set_device(0)


def test_result_on_the_arguments_device() -> None:
    """An op's result is where its arguments are, whatever device is current."""
    x = torch.ones(3, device="hostmem:1")
    for result in (x + 1, x.exp(), x.clone(), torch.empty_like(x), x.sum()):
        assert result.device == torch.device("hostmem:1")


@pytest.mark.parametrize("device", [-2, 2])
def test_no_such_device(device: int) -> None:
    """The error says what there is."""
    with pytest.raises(RuntimeError, match="must be from 0 to 1"):
        torch._C._accelerator_setDeviceIndex(2)
    with pytest.raises(RuntimeError):
        torch.empty(2, device=f"hostmem:{abs(device)}")


def test_accelerator() -> None:
    """torch.accelerator is this device."""
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("hostmem")
    assert torch.accelerator.device_count() == 2
    with torch.accelerator.device_index(1):
        assert torch.hostmem.current_device() == 1
    assert torch.hostmem.current_device() == 0
    torch.accelerator.synchronize()
    assert torch.get_device_module("hostmem") is torch.hostmem
    assert torch.get_device_module() is torch.hostmem


def test_default_device() -> None:
    """As the default device, for functions and for modules."""
    with torch.device("hostmem:1"):
        assert torch.ones(2).device == torch.device("hostmem:1")
        assert torch.nn.Linear(2, 3).weight.device == torch.device("hostmem:1")
