"""Saving and loading tensors, modules and what the device knows of them."""

import copy
import io
import pickle

import pytest
import torch


def saved_and_loaded(thing: object, **options: object) -> object:
    """What torch.load makes of what torch.save wrote."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **options)


def test_tensors() -> None:
    """A tensor comes back to its device, or where map_location says."""
    x = torch.randn(3, 4, device="hostmem:1").t()
    y = saved_and_loaded(x)
    assert y.device == x.device and y.stride() == x.stride() and torch.equal(x, y)
    assert saved_and_loaded(x, map_location="cpu").device.type == "cpu"
    assert saved_and_loaded(x, map_location="hostmem:0").device.index == 0
    assert torch.equal(saved_and_loaded(x.cpu(), map_location="hostmem"), x.to("hostmem:0"))


def test_shared_storage() -> None:
    """Two views of one storage still share it."""
    x = torch.zeros(4, device="hostmem")
    first, second = saved_and_loaded([x, x[1:]])
    first[1] = 5
    assert second[0].item() == 5


@pytest.mark.parametrize("name", ["tiled", "another_flag"])
def test_metadata(name: str) -> None:
    """The flags of tensors and parameters are kept by torch.save and by pickle."""
    x = torch.ones(2, device="hostmem")
    torch.hostmem.set_flag(x, name)
    assert torch.hostmem.has_flag(x, name) and not torch.hostmem.has_flag(x, "other")
    for y in (saved_and_loaded(x), pickle.loads(pickle.dumps(x))):
        assert torch.hostmem.has_flag(y, name) and not torch.hostmem.has_flag(y, "other")
    parameter = torch.nn.Parameter(torch.ones(2, device="hostmem"))
    torch.hostmem.set_flag(parameter, name)
    assert torch.hostmem.has_flag(saved_and_loaded(parameter), name)
    assert not torch.hostmem.has_flag(saved_and_loaded(torch.ones(2, device="hostmem")), name)
    with pytest.raises(ValueError, match="must be on a hostmem device"):
        torch.hostmem.set_flag(torch.ones(1), name)


def test_module() -> None:
    """State dicts, whole optimizers, and copies."""
    model = torch.nn.Linear(3, 2, device="hostmem")
    state = saved_and_loaded(model.state_dict())
    other = torch.nn.Linear(3, 2, device="hostmem:1")
    other.load_state_dict(state)
    assert other.weight.device.index == 1 and torch.equal(other.weight.cpu(), model.weight.cpu())
    twin = copy.deepcopy(model)
    assert twin.weight.device == model.weight.device and torch.equal(twin.weight, model.weight)
    assert twin.weight.data_ptr() != model.weight.data_ptr()
