"""Steps on rows of sequential: which kernels compute them, and that they are what the CPU's are."""

from __future__ import annotations

import pytest
import torch
from test_launch import launched
from torch import Tensor

ops = torch.ops.fastops
SEED = 0x0123456789ABCDEF


def network(steps: str, columns: int, rows: int = 11, dtype: torch.dtype = torch.float32) -> tuple:
    """Arguments of a sequential without products, on the CPU."""
    generator = torch.Generator().manual_seed(columns)
    parameters, params = [], []
    for step in steps.split():
        vector = torch.randn(columns, generator=generator)
        parameters += {"layer_norm": [vector, vector / 2], "rms_norm": [vector], "scale": [vector]}.get(step, [])
        params += {"layer_norm": [1e-5], "rms_norm": [1e-5], "dropout": [0.25]}.get(step, [])
    seed = torch.tensor(SEED) if "dropout" in steps else None
    return torch.randn(rows, columns, generator=generator).to(dtype), parameters, steps, params, seed


def on_device(arguments: tuple) -> tuple:
    x, parameters, steps, params, seed = arguments
    return x.to("mps"), [p.to("mps") for p in parameters], steps, params, seed if seed is None else seed.to("mps")


def gradients(arguments: tuple, grad: Tensor) -> list[Tensor]:
    x, parameters, steps, params, seed = arguments
    saved = ops.sequential_forward(*arguments)[1]
    mask = [True] * (1 + len(parameters))
    return ops.sequential_backward(grad, x, parameters, saved, steps, params, seed, mask)


def assert_as_on_the_cpu(arguments: tuple) -> None:
    """Forward and backward; the CPU sums in another order."""
    tolerance = 1e-4 if arguments[0].dtype == torch.float32 else 2e-2
    result = ops.sequential(*on_device(arguments)).cpu()
    expected = ops.sequential(*arguments)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    grad = torch.randn_like(expected)
    expected_gradients = gradients(arguments, grad)
    results = gradients(on_device(arguments), grad.to("mps"))
    for result, expected in zip(results, expected_gradients, strict=True):
        bound = tolerance * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=bound)


def test_one_kernel_for_the_steps() -> None:
    arguments = on_device(network("layer_norm gelu dropout scale", 20, rows=4))
    assert launched(lambda: ops.sequential(*arguments)) == ["fastops_rows_gelu_small_float"]
    grad = torch.randn(4, 20, device="mps")
    assert launched(lambda: gradients(arguments, grad)) == [
        "fastops_rows_gelu_small_float",
        "fastops_rows_gelu_backward_small_float",
    ]


def test_threadgroups_have_sums_of_their_own() -> None:
    arguments = on_device(network("layer_norm", 2, rows=200))
    kernels = launched(lambda: gradients(arguments, torch.randn(200, 2, device="mps")))
    assert kernels[1:] == ["fastops_rows_identity_backward_small_float", "fastops_column_sums_float"]


def test_different_activations_take_a_kernel_each() -> None:
    arguments = network("gelu dropout relu layer_norm gelu", 20)
    kernels = [f"fastops_rows_{name}_small_float" for name in ("gelu", "relu", "gelu")]
    assert launched(lambda: ops.sequential(*on_device(arguments))) == kernels
    assert_as_on_the_cpu(arguments)


@pytest.mark.parametrize("steps", ["scale " * 9, "layer_norm " * 5, "dropout " * 9, "gelu " * 17])
def test_more_steps_than_a_kernel_takes(steps: str) -> None:
    arguments = network(steps.strip(), 20)
    kernels = launched(lambda: ops.sequential(*on_device(arguments)))
    assert len(kernels) == (3 if "gelu" in steps else 2), kernels
    assert_as_on_the_cpu(arguments)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 63, 64, 65, 130, 300, 1000, 1030, 2500])
def test_widths(columns: int) -> None:
    assert_as_on_the_cpu(network("layer_norm gelu dropout", columns, rows=5))


@pytest.mark.parametrize(
    ("steps", "kind", "most"),
    [
        ("gelu dropout", "gelu", 7168),
        ("gelu dropout", "gelu_backward", 7168),
        ("layer_norm", "identity_backward", 2048),
    ],
)
def test_widest_rows(steps: str, kind: str, most: int) -> None:
    """As docs/metal.md has it: an activation that stands first is computed from what is read again."""

    def kernels(columns: int) -> list[str]:
        arguments = on_device(network(steps, columns, rows=1))
        return launched(lambda: gradients(arguments, torch.randn(1, columns, device="mps")))

    assert f"fastops_rows_{kind}_large_float" in kernels(most)
    assert not [name for name in kernels(most + 1) if name.startswith(f"fastops_rows_{kind}_large")]
    assert_as_on_the_cpu(network(steps, most, rows=2))


@pytest.mark.parametrize("columns", [3000, 9000])
def test_rows_that_do_not_fit(columns: int) -> None:
    """Through PyTorch's ops: backward, or both ways."""
    arguments = network("layer_norm relu layer_norm relu", columns, rows=3)
    kernels = launched(lambda: gradients(on_device(arguments), torch.randn(3, columns, device="mps")))
    rows = [name for name in kernels if "rows" in name]
    assert rows == (["fastops_rows_relu_large_float"] if columns == 3000 else [])
    assert_as_on_the_cpu(arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropout_drops_what_it_does_on_the_cpu(dtype: torch.dtype) -> None:
    arguments = network("dropout dropout", 200, rows=40, dtype=dtype)
    assert torch.equal(ops.sequential(*on_device(arguments)).cpu(), ops.sequential(*arguments))
    grad = torch.randn(40, 200).to(dtype)
    results = gradients(on_device(arguments), grad.to("mps"))
    assert torch.equal(results[0].cpu(), gradients(arguments, grad)[0])


@pytest.mark.parametrize("rows", [3, 300, 5000])
def test_sums_are_the_same_in_every_run(rows: int) -> None:
    arguments = on_device(network("rms_norm scale", 5, rows=rows))
    grad = torch.randn(rows, 5, device="mps")
    first, *others = (gradients(arguments, grad) for _ in range(3))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_nan_and_infinity() -> None:
    """A NaN stays in its row, and dropout does not take it away."""
    x, parameters, steps, params, seed = network("dropout relu", 70)
    x[2, 3], x[4, 60], x[5, 1:40] = torch.nan, torch.inf, -torch.inf
    arguments = x, parameters, steps, params, seed
    result, expected = ops.sequential(*on_device(arguments)).cpu(), ops.sequential(*arguments)
    assert torch.equal(result.isnan(), expected.isnan())
    torch.testing.assert_close(result, expected, equal_nan=True)
