"""Every kernel of one activation in a few seconds, for mutations.py; the real tests are the suite."""

import itertools
import os

import torch
from torch import Tensor

os.environ["FASTOPS_METAL_LINEAR"] = "1"

import fastops  # noqa: F401  (registers the ops)

ops = torch.ops.fastops
LAMBD = 0.5


def shrink(x: Tensor) -> Tensor:
    return torch.nn.functional.softshrink(x, LAMBD)


def slope(x: Tensor) -> Tensor:
    return (x.abs() > LAMBD).to(x)


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[actual.dtype]
    torch.testing.assert_close(actual.cpu().float(), expected, rtol=tolerance, atol=tolerance)


def check(dtype: torch.dtype) -> None:
    def make(*shape: int) -> tuple[Tensor, Tensor]:
        tensor = torch.randn(shape).to(dtype)
        return tensor.float(), tensor.to("mps")

    for shape in ((1,), (7,), (33, 5), (2, 64)):
        (x, dx), (g, dg) = make(*shape), make(*shape)
        close(ops.softshrink(dx, LAMBD), shrink(x))
        close(ops.activation_backward(dg, dx, "softshrink", [LAMBD]), g * slope(x))
        for order in (2, 3):
            close(ops.activation_backward(dg, dx, "softshrink", [LAMBD], order=order), 0 * x)
    (x, dx), (g, dg) = make(9, 12), make(12, 9)
    close(ops.softshrink(dx.t()[1:, ::2], LAMBD), shrink(x.t()[1:, ::2]))
    close(ops.activation_backward(dg, dx.t(), "softshrink", [LAMBD]), g * slope(x.t()))
    (x, dx), (g, dg) = make(4, 3, 2, 5, 10), make(4, 3, 2, 5, 7)  # of which no two dimensions can be put together
    x, dx = (tensor[::2, :2, :, :3, :7] for tensor in (x, dx))
    close(ops.softshrink(dx, LAMBD), shrink(x))
    g, dg = (tensor[::2, 1:, :, 2:] for tensor in (g, dg))
    close(ops.activation_backward(dg, dx, "softshrink", [LAMBD]), g * slope(x))
    (y, dy) = make(4, 3, 2, 5, 20)
    ops.softshrink.out(dx, LAMBD, out=dy[::2, :2, :, :3, :14:2])
    y[::2, :2, :, :3, :14:2] = shrink(x)
    close(dy, y)
    for rows, columns in ((1, 1), (13, 36), (600, 7)):
        (x, dx), (b, db), (g, dg), (u, du) = (make(*s) for s in [(rows, columns), (columns,)] + [(rows, columns)] * 2)
        close(ops.bias_act(dx, db, "softshrink", [LAMBD]), shrink(x + b))
        grad = g * slope((x.to(dtype) + 0).float() + b)
        own, bias = ops.bias_act_backward(dg, dx, db, "softshrink", [LAMBD], False, [True, True])
        close(own, grad)
        close(bias / rows, grad.sum(0) / rows)
        wide = torch.cat([dx, du], 1)
        close(ops.act_mul(dx, wide[:, columns:], "softshrink", [LAMBD]), shrink(x) * u)
        close(ops.gated_act(wide, "softshrink", [LAMBD]), shrink(x) * u)
        gate, up = ops.act_mul_backward(dg, dx, du, "softshrink", [LAMBD], [True, True])
        close(gate, g * u * slope(x))
        close(up, g * shrink(x))
    for rows, inputs, outputs in ((1, 5, 3), (40, 50, 36)):
        (x, dx), (w, dw), (b, db) = make(rows, inputs), make(outputs, inputs), make(outputs)
        close(ops.linear_act(dx, dw, db, "softshrink", [LAMBD]) / inputs, shrink(x @ w.T + b) / inputs)


# A barrier may stand in for another one: not in all of these.
STEPS = ("layer_norm softshrink dropout scale rms_norm", "layer_norm softshrink dropout", "scale softshrink")
VECTORS = {"layer_norm": 2, "rms_norm": 1, "scale": 1}
NUMBERS = {"layer_norm": [1e-5], "rms_norm": [1e-5], "softshrink": [LAMBD], "dropout": [0.25]}


def run_rows(steps: str, x: Tensor, grad: Tensor, *parameters: Tensor) -> list[Tensor]:
    """The steps' result and all gradients."""
    params = [number for step in steps.split() for number in NUMBERS.get(step, [])]
    seed = torch.tensor(123456789, device=x.device) if "dropout" in steps else None
    value, saved = ops.sequential_forward(x, parameters, steps, params, seed)
    mask = [True] * (1 + len(parameters))
    return [value, *ops.sequential_backward(grad, x, parameters, saved, steps, params, seed, mask)]


def check_rows(dtype: torch.dtype) -> None:
    """Steps on rows, against the kernels of the CPU."""
    for steps, (rows, columns) in itertools.product(STEPS, ((23, 70), (3, 1030))):
        x, grad = torch.randn(2, rows, columns).to(dtype)
        parameters = [torch.randn(columns) for step in steps.split() for _ in range(VECTORS.get(step, 0))]
        tensors = x, grad, *parameters
        results = (run_rows(steps, *(tensor.to(device) for tensor in tensors)) for device in ("mps", "cpu"))
        for result, expected in zip(*results, strict=True):
            bound = max(1.0, expected.float().abs().max().item())
            close(result / bound, expected.float() / bound)


for seed in range(2):
    torch.manual_seed(seed)
    for each in (torch.float32, torch.float16, torch.bfloat16):
        check(each)
        check_rows(each)
