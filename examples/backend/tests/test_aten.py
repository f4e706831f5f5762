"""ATen's basic ops, and the fallback."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

DEVICE = "hostmem"


def same(result: torch.Tensor, expected: torch.Tensor) -> None:
    """A device tensor equal to a CPU tensor."""
    assert result.device.type == DEVICE
    torch.testing.assert_close(result.cpu(), expected)


def test_copies() -> None:
    """Between dtypes, strides, devices and shapes."""
    x = torch.randn(3, 4)
    same(x.to(DEVICE), x)
    same(x.to(DEVICE).to(torch.float64), x.double())
    same(x.to(DEVICE).t(), x.t())
    same(x.t().to(DEVICE), x.t())
    same(x.to("hostmem:0").to("hostmem:1"), x)
    target = torch.zeros(2, 3, 4, device=DEVICE)
    target.copy_(x)
    same(target, x.expand(2, 3, 4))
    target[0, :, ::2] = 7
    expected = x.expand(2, 3, 4).clone()
    expected[0, :, ::2] = 7
    same(target, expected)
    host = torch.empty(4, 3).t()
    host.copy_(x.to(DEVICE))
    assert torch.equal(host, x)


def test_complex() -> None:
    """Conjugates and negatives that are not yet computed."""
    x = torch.randn(3, dtype=torch.complex64)
    same(x.to(DEVICE).conj(), x.conj())
    same(x.conj().to(DEVICE), x.conj())
    same(x.to(DEVICE).conj().imag, x.conj().imag)
    same(torch.view_as_real(x.to(DEVICE)), torch.view_as_real(x))
    same(torch.view_as_complex(torch.view_as_real(x).to(DEVICE)), x)


def test_sparse() -> None:
    """Sparse tensors are made on the device, and go to it and back."""
    x = torch.eye(3).to_sparse()
    for y in (x.to(DEVICE), torch.sparse_coo_tensor(x.indices().to(DEVICE), x.values().to(DEVICE), (3, 3))):
        assert y.is_sparse and y.device.type == DEVICE and y._nnz() == 3
        same(y._values(), torch.ones(3))
        assert torch.equal(y.cpu().to_dense(), torch.eye(3))


def test_views_share_memory() -> None:
    """Writing into a view writes into the tensor."""
    x = torch.zeros(4, 6, device=DEVICE)
    for view in (x.view(24), x.t(), x[1:, ::2], x.unfold(1, 2, 2), x.view(torch.int32), x.diagonal(), x.split(2)[1]):
        assert view.data_ptr() - x.data_ptr() == view.storage_offset() * 4
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.view(24)[5] = 1
    assert x[0, 5].item() == 1


def test_set() -> None:
    """The ways of giving a tensor another storage."""
    x = torch.arange(6.0, device=DEVICE)
    y = torch.empty(0, device=DEVICE).set_(x)
    assert y.is_set_to(x)
    same(torch.empty(0, device=DEVICE).set_(x.untyped_storage(), 1, (2, 2), (2, 1)), torch.tensor([[1.0, 2], [3, 4]]))
    same(torch.empty(0, device=DEVICE).set_(x.untyped_storage(), 2, (2,)), torch.tensor([2.0, 3]))
    assert torch.empty(3, device=DEVICE).set_().numel() == 0


def test_values_to_python() -> None:
    """item, tolist, printing and truth."""
    x = torch.tensor([1.5, -2.0], device=DEVICE)
    assert x[1].item() == -2 and x.tolist() == [1.5, -2.0] and bool(x[0] > 1)
    assert repr(x) == "tensor([ 1.5000, -2.0000], device='hostmem:0')"
    with pytest.raises(TypeError, match="hostmem"):
        np.asarray(x)


FUNCTIONS = {
    "relu": lambda x: x.relu(),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "matmul": lambda x: x @ x.mT,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sort": lambda x: x.sort(-1).values,
    "cat": lambda x: torch.cat([x, x], -1),
    "index_select": lambda x: x.index_select(-1, torch.tensor([0, 2], device=x.device)),
    "split": lambda x: torch.stack(torch.split(x, 2, -1)),
    "mask": lambda x: x[x > 0],
    "where": lambda x: torch.where(x > 0, x, -x),
    "mean": lambda x: x.mean(-1, keepdim=True).expand_as(x).contiguous(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_fallback(function: object) -> None:
    """Ops without a kernel run on the CPU, with their derivatives."""
    # The gradient of a normalized row's squares would be nothing but rounding.
    x = torch.randn(2, 4, 4, dtype=torch.float64)
    on_device = x.to(DEVICE).requires_grad_()
    x.requires_grad_()
    expected, result = function(x), function(on_device)
    same(result, expected)
    expected.pow(3).sum().backward()
    result.pow(3).sum().backward()
    same(on_device.grad, x.grad)


def test_in_place_and_out() -> None:
    """Ops that write into their arguments."""
    x = torch.arange(4.0, device=DEVICE)
    assert x.add_(1) is x
    same(x, torch.arange(1.0, 5))
    out = torch.empty(0, device=DEVICE)
    assert torch.add(x, x, out=out) is out
    same(out, torch.arange(2.0, 10, 2))
    same(x.fill_(3), torch.full((4,), 3.0))
    same(x.fill_(torch.tensor(2.0)), torch.full((4,), 2.0))
    same(x.zero_(), torch.zeros(4))
    x[1:3].fill_(1)
    same(x, torch.tensor([0.0, 1, 1, 0]))


def test_training() -> None:
    """A few steps of training, as on the CPU."""
    losses = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        x, y = torch.randn(16, 5).to(device), torch.randn(16, 2).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
