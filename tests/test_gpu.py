"""What concerns GPUs alone: graphs, streams and several devices. With FASTOPS_TEST_DEVICE=cuda."""

import pytest
import torch

import fastops
from checks import assert_same_bits
from strategies import DEVICE, random_tensor

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs FASTOPS_TEST_DEVICE=cuda")


def make_model(device):
    """A network for one kernel, one for PyTorch's products, and a gated block, one after another."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        fastops.nn.MLP(24, [48, 32], 16, activation="gelu"),
        fastops.nn.MLP(16, 300, 40, activation="softshrink"),
        fastops.nn.GatedMLP(40, 96, 8, bias=True),
    ).to(device)


def training_step(model, x):
    """Forward and backward; the results that a graph would leave in place."""
    loss = model(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_every_op_is_native():
    """No op goes through PyTorch's on this device."""
    missing = [op for op, devices in fastops.info().native.items() if not devices["cuda"]]
    assert not missing


def test_graph(device):
    """A training step can be captured in a graph, and the graph computes it with new data."""
    model = make_model(device)
    x = random_tensor((64, 24), torch.float32, device, seed=0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training_step(model, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = training_step(model, x)
    x.copy_(random_tensor((64, 24), torch.float32, device, seed=1))
    graph.replay()
    torch.testing.assert_close(results, training_step(model, x))


def test_current_stream(device):
    """Kernels run on the current stream: after what was put there before, which takes long."""
    x = torch.zeros(2**20, device=device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        x.fill_(2)
        y = fastops.functional.relu(x)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 2))


def test_repeatable(device):
    """The same bits on every run."""
    model = make_model(device)
    x = random_tensor((5000, 24), torch.float32, device, seed=0)
    first = training_step(model, x)
    for again in (training_step(model, x) for _ in range(3)):
        for a, b in zip(again, first, strict=True):
            assert_same_bits(a, b)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device():
    """Tensors of a device that is not the current one are computed there."""
    x = random_tensor((64, 24), torch.float32, "cpu", seed=0)
    results = [training_step(make_model(f"cuda:{i}"), x.to(f"cuda:{i}")) for i in (0, 1)]
    for a, b in zip(*results, strict=True):
        assert b.device.index == 1
        torch.testing.assert_close(a, b.to(a.device))
