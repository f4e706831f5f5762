"""Streams and events."""

import pytest
import torch


def test_streams() -> None:
    """A stream is current in its context, on its device alone."""
    default = torch.hostmem.current_stream()
    assert default == torch.hostmem.default_stream()
    stream, other = torch.hostmem.Stream(), torch.hostmem.Stream()
    assert stream != other != default and stream.device == torch.device("hostmem:0")
    with torch.hostmem.stream(stream):
        assert torch.hostmem.current_stream() == stream == torch.accelerator.current_stream()
        assert torch.hostmem.current_stream(1) == torch.hostmem.default_stream(1)
        with torch.hostmem.stream(other):
            assert torch.hostmem.current_stream() == other
        with torch.hostmem.stream(None):
            assert torch.hostmem.current_stream() == stream
    assert torch.hostmem.current_stream() == default
    torch.hostmem.set_stream(stream)
    assert torch.hostmem.current_stream() == stream
    torch.hostmem.set_stream(default)
    assert stream.query()
    stream.synchronize()


def test_stream_of_the_other_device() -> None:
    """A stream brings its device with it."""
    with torch.hostmem.Stream("hostmem:1") as stream:
        assert stream.device.index == 1
        assert torch.empty(1, device="hostmem").device.index == 1
    assert torch.hostmem.current_device() == 0


def test_events() -> None:
    """Events are recorded, waited for, and measure time."""
    start, end = torch.hostmem.Event(enable_timing=True), torch.hostmem.Event(enable_timing=True)
    start.record()
    x = torch.randn(200, 200, device="hostmem")
    (x @ x).sum().item()
    end.record()
    end.synchronize()
    assert start.query() and end.query()
    assert start.elapsed_time(end) > 0 > end.elapsed_time(start)
    stream = torch.hostmem.Stream()
    stream.wait_event(end)
    stream.wait_stream(torch.hostmem.current_stream())
    assert stream.record_event().query()
    x.record_stream(stream)


def test_event_of_another_device() -> None:
    """An event stays on its device."""
    event = torch.hostmem.Event()
    event.record()
    with pytest.raises(RuntimeError, match="device"):
        event.record(torch.hostmem.Stream("hostmem:1"))


def test_backward_runs_in_the_forward_stream() -> None:
    """The backward pass of an op uses the stream of its forward pass."""
    seen = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(torch.hostmem.current_stream())
            return grad

    x = torch.ones(2, device="hostmem", requires_grad=True)
    stream = torch.hostmem.Stream()
    with stream:
        y = Note.apply(x)
    y.sum().backward()
    assert seen == [stream]
