"""Automatic mixed precision."""

import pytest
import torch
import torch.nn.functional as F

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists(dtype: torch.dtype) -> None:
    """Products run in the lower dtype, sums in float32, and what takes both in the wider one."""
    x, w = torch.randn(4, 4, device="hostmem"), torch.randn(4, 4, device="hostmem")
    with torch.autocast("hostmem", dtype):
        assert torch.is_autocast_enabled("hostmem") and torch.get_autocast_dtype("hostmem") is dtype
        low = x @ w
        assert low.dtype is F.linear(x, w).dtype is torch.addmm(x, x, w).dtype is dtype
        assert low.exp().dtype is low.softmax(-1).dtype is low.sum().dtype is torch.float32
        assert torch.cat([low, x]).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32  # other devices are left alone
        with torch.autocast("hostmem", enabled=False):
            assert (x @ w).dtype is torch.float32
    assert (x @ w).dtype is torch.float32
    torch.testing.assert_close(low.cpu(), x.cpu().to(dtype) @ w.cpu().to(dtype))


def test_unsupported_dtype() -> None:
    """A dtype that the device's module does not list is a warning."""
    assert torch.hostmem.get_amp_supported_dtype() == DTYPES
    with pytest.warns(UserWarning, match="only supports dtypes of torch.bfloat16, torch.float16"):
        torch.autocast("hostmem", torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_training(dtype: torch.dtype) -> None:
    """Training with a GradScaler: the weights change, and an overflow is skipped."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2, device="hostmem")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("hostmem", init_scale=4.0)
    x = torch.randn(8, 4, device="hostmem")
    losses = []
    for _ in range(3):
        with torch.autocast("hostmem", dtype):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    before = model.weight.clone()
    optimizer.zero_grad()
    scaler.scale(model(x * float("inf")).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before) and scaler.get_scale() == 2.0
