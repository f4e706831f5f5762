"""The profilers."""

import torch
from torch.profiler import ProfilerActivity, profile


def work() -> None:
    """Something to profile."""
    x = torch.randn(64, 64, device="hostmem", requires_grad=True)
    (x @ x).relu().sum().backward()


def test_profile() -> None:
    """torch.profiler records the ops, forward and backward."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as run:
        work()
    names = {event.key for event in run.key_averages()}
    assert {"aten::mm", "aten::relu", "MmBackward0"} <= names
    assert ProfilerActivity.PrivateUse1 == ProfilerActivity.HOSTMEM


def test_device_times() -> None:
    """Each op has a time on the device."""
    with torch.autograd.profiler.profile(use_device="hostmem", use_kineto=False) as run:
        work()
    events = {event.name: event for event in run.function_events}
    assert "aten::mm" in events
    assert events["aten::mm"].device_time_total > 0
