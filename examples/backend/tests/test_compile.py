"""torch.compile with backends that leave the ops to the device."""

import pytest
import torch

import fastops


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_whole_graph(backend: str) -> None:
    """A network in one graph, training included."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 8), fastops.nn.MLP(8, 6, 4, activation="silu"), torch.nn.Softshrink()
    ).to("hostmem")
    x = torch.randn(3, 5, device="hostmem")
    expected = model(x)
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    result = compiled(x)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_functions_on_the_device() -> None:
    """Making tensors, autocast and moves to and from the device are part of the graph."""

    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.ones(3, 3, device="hostmem") + x.to("hostmem")
        with torch.autocast("hostmem", torch.bfloat16):
            y = y @ y
        return y.cpu() if y.device.type == "hostmem" else y

    result = function(torch.zeros(3, 3))
    assert result.dtype is torch.bfloat16 and torch.equal(result, torch.full((3, 3), 3.0, dtype=torch.bfloat16))
