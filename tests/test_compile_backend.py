"""torch.compile(backend="fastops"): what is fused, and what is left because it would not be the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fastops
from compiled import B5, B, V, W, X, assert_same, compiled, rand, two_layers
from zoo import MODELS


def conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As GPT-2 writes a linear layer."""
    return torch.addmm(bias, x.view(-1, x.size(-1)), weight).view(*x.shape[:-1], weight.size(1))


FUSED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "linear": (lambda x: F.relu(F.linear(x, W, B5)), ["linear_act(relu)"]),
    "without bias": (lambda x: torch.tanh(F.linear(x, W)), ["linear_act(tanh)"]),
    "matmul with t()": (lambda x: F.silu(x @ W.t() + B5), ["linear_act(silu)"]),
    "matmul with T": (lambda x: F.silu(B5 + torch.matmul(x, W.T)), ["linear_act(silu)"]),
    "mm with transpose": (lambda x: F.silu(torch.mm(x, W.transpose(0, 1)).add(B5)), ["linear_act(silu)"]),
    "matmul": (lambda x: F.silu(x @ V + B), ["linear_act(silu)"]),
    "addmm": (lambda x: F.silu(torch.addmm(B, x, V)), ["linear_act(silu)"]),
    "aten": (lambda x: torch.ops.aten.relu(torch.ops.aten.addmm(B, x, V)), ["linear_act(relu)"]),
    "bias in place": (lambda x: F.silu((x @ V).add_(B)), ["linear_act(silu)"]),
    "activation in place": (lambda x: F.relu(F.linear(x, W), inplace=True), ["linear_act(relu)"]),
    "activation_": (lambda x: F.linear(x, W).tanh_(), ["linear_act(tanh)"]),
    "own op": (lambda x: fastops.functional.mish(F.linear(x, W)), ["linear_act(mish)"]),
    "mlp": (two_layers, ["mlp of 2 layers(gelu)"]),
    "three layers": (
        lambda x: F.relu(two_layers(F.gelu(F.linear(x, V)))),
        ["mlp of 3 layers(gelu, gelu, relu)"],
    ),
    "two activations": (
        lambda x: F.relu(F.linear(F.gelu(F.linear(F.relu(F.linear(x, V)), V)), V)),
        ["linear_act(relu)", "mlp of 2 layers(gelu, relu)"],
    ),
    "dropout that is off": (lambda x: two_layers(x, 0.5, False), ["mlp of 2 layers(gelu)"]),
    "casts to what it is": (
        lambda x: F.linear(F.gelu(F.linear(x, V)).to(W.dtype), W),
        ["mlp of 2 layers(gelu)"],
    ),
    "shared weights": (lambda x: F.linear(F.relu(F.linear(x, V, B)), V, B), ["mlp of 2 layers(relu)"]),
    "one dimension": (lambda x: two_layers(x[0]), ["mlp of 2 layers(gelu)"]),
    "Conv1D": (
        lambda x: conv1d(F.gelu(conv1d(x.view(2, 2, 6), V, B)), V, B),
        ["mlp of 2 layers(gelu)"],
    ),
    "gated": (
        lambda x: F.linear(F.silu(F.linear(x, V)) * F.linear(x, V.t(), B), W, B5),
        ["gated_mlp(silu)"],
    ),
    "gate second": (lambda x: F.linear(F.linear(x, V) * F.gelu(F.linear(x, V.t())), W), ["gated_mlp(gelu)"]),
    "gate of a formula": (
        lambda x: F.linear(F.linear(x, V) * (h := F.linear(x, V.t())) * torch.sigmoid(h), W),
        [],  # (up * gate) * sigmoid(gate) is rounded otherwise, and no product of an activation
    ),
    "packed, chunk": (
        lambda x: (lambda a, b: F.mish(a) * b)(*F.linear(x, V).chunk(2, -1)),
        ["gated_act(mish)"],
    ),
    "packed, split, gate second": (
        lambda x: (lambda a, b: a * F.mish(b))(*F.linear(x, V).split(3, dim=-1)),
        ["gated_act(mish)"],
    ),
    "packed, slices": (
        lambda x: (lambda h: F.mish(h[..., :3]) * h[..., 3:])(F.linear(x, V)),
        ["gated_act(mish)"],
    ),
    "glu alone": (lambda x: F.glu(F.linear(x, V)), []),
    "lone activations": (
        lambda x: (F.mish(x), F.gelu(x, approximate="tanh"), F.relu(x), F.silu(x)),
        ["mish", "gelu_tanh"],
    ),
    "lone softshrink, in training": (lambda x: F.softshrink(x), ["softshrink(lambd=0.5)"]),
    "lone softshrink, without gradients": (lambda x: F.softshrink(x.detach()) + x, []),
    "lone bias": (lambda x: F.mish(x.flip(0) + B), ["bias_act(mish)"]),
    "other strides": (lambda x: F.mish(x.t()) * x.flip(0).t(), ["mish"]),
    "lone gate": (lambda x: F.mish(x) * x.flip(0), ["act_mul(mish)"]),
    "two users of the result": (
        lambda x: (lambda h: h + F.linear(F.relu(F.linear(h, V)), V))(F.relu(F.linear(x, V))),
        ["linear_act(relu)", "mlp of 2 layers(relu)"],
    ),
    "no gradients in all of it": (
        torch.no_grad()(two_layers),
        ["mlp of 2 layers(gelu)"],
    ),
}


@pytest.mark.parametrize("case", FUSED)
def test_what_is_fused(case: str) -> None:
    """The ops that each function becomes, and the results."""
    function, ops = FUSED[case]
    noting = assert_same(function, [X])
    assert noting.ops == ops, noting.reasons


def autocast(x: Tensor) -> Tensor:
    """Two layers in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return two_layers(x)


def half_without_gradients(x: Tensor) -> Tensor:
    """The activation has gradients, the layer before it has none."""
    with torch.no_grad():
        h = F.linear(x, V)
    return F.relu(h) + x


def written_between(x: Tensor) -> Tensor:
    """What the hyperbolic tangent is multiplied with is no longer what it was taken of."""
    h = F.linear(x.detach(), V)
    t = torch.tanh(F.softplus(h))
    h.add_(1)
    return h * t + x


def view_written(x: Tensor) -> Tensor:
    """A view of the layer's result is written to before the activation."""
    h = F.linear(x, V)
    h[0].mul_(2)
    return torch.tanh(h)


def overlapping_written(x: Tensor) -> Tensor:
    """Another tensor is written to between the layer and the activation."""
    y = x * 2
    h = F.linear(x, V)
    y[0].add_(1)
    return F.relu(h) + y


LEFT: dict[str, Callable[..., Any]] = {
    "a layer alone": lambda x: F.linear(x, W),
    "two layers without activation": lambda x: F.linear(F.linear(x, V), V),
    "pre-activation used twice": lambda x: (lambda h: F.relu(h) + h)(F.linear(x, V)),
    "pre-activation returned": lambda x: (lambda h: (F.relu(h), h))(F.linear(x, V)),
    "activation in place, used before": lambda x: (lambda h: (h, F.relu_(h)))(F.linear(x, V)),
    "writes to a view": view_written,
    "written between": written_between,
    "another is written between": overlapping_written,
    "writes to the input": lambda x: F.relu_(x) + 1,
    "part of a formula used twice": lambda x: (lambda s: (x * s, s))(torch.sigmoid(x)),
    "view between": lambda x: F.relu(F.linear(x, V).view(2, 12)),
    "dropout between": lambda x: F.relu(F.dropout(F.linear(x, V), 0.5, True)),
    "bias that is broadcast up": lambda x: F.relu(x @ V[:, :1] + B),
    "bias of one": lambda x: F.relu(x @ V + B[:1]),
    "bias of each row": lambda x: F.relu(x @ V + rand(4, 1)),
    "matrix as a bias": lambda x: F.relu(x @ V + rand(4, 6)),
    "batched weight": lambda x: F.relu(x @ torch.stack([V, V])),
    "scaled addmm": lambda x: F.relu(torch.addmm(B, x, V, beta=0.5)),
    "autocast": autocast,
    "two modes": half_without_gradients,
    "halves of another dimension": lambda x: (lambda a, b: F.sigmoid(a) * b)(*x.chunk(2, 0)),
    "not halves": lambda x: (lambda a, b, c: F.sigmoid(a) * b)(*x.chunk(3, -1)),
    "vmap": lambda x: torch.vmap(lambda row: F.relu(F.linear(row, V)))(x),
    "integers": lambda x: F.relu((x * 10).long()),
    "mixed dtypes": lambda x: F.relu(F.linear(x, V).float()),
    "glu between layers": lambda x: F.linear(F.glu(F.linear(x, V)), V[:, :3].contiguous()),
    "alpha": lambda x: F.relu(torch.add(x @ V, B, alpha=2)),
}


@pytest.mark.parametrize("case", LEFT)
@pytest.mark.filterwarnings("ignore")
def test_what_is_left(case: str) -> None:
    """Nothing is fused where the result would be another one, or nothing would be won."""
    noting = assert_same(LEFT[case], [X])
    assert noting.reports and not noting.ops


def test_what_is_left_between_what_is_fused() -> None:
    """A dropout that is on, a view and a second user each end a chain, and only that."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.dropout(F.gelu(F.linear(x, V)), 0.5, True)
        h = F.relu(F.linear(h, V)).view(2, 12).view(4, 6)
        h = F.relu(F.linear(h, V))
        return F.relu(F.linear(h, V)), h

    assert assert_same(function, [X]).ops == ["linear_act(gelu)"] + ["linear_act(relu)"] * 3


def test_under_autocast_all_is_left() -> None:
    """Autocast that is on around the compiled function."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    call, noting = compiled(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert call(X.float()).dtype == torch.bfloat16
    assert not noting.ops
    assert any("autocast" in reason for reason in noting.reasons)


def test_meta() -> None:
    """A device that autocast does not have."""
    call, _ = compiled(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).to("meta"))
    assert call(X.float().to("meta")).shape == (4, 5)


def test_reasons() -> None:
    """They say which node is in the way."""
    noting = assert_same(lambda x: (lambda h: F.relu(h) + h)(F.linear(x, V)), [X])
    assert "linear_act(relu): linear is also needed by add" in noting.reasons
    noting = assert_same(LEFT["glu between layers"], [X])
    assert not any("gated_mlp" in reason for reason in noting.reasons)
    noting = assert_same(LEFT["two modes"], [X])
    assert any("no_grad" in reason for reason in noting.reasons)


@pytest.mark.parametrize("aot", [False, True])
def test_gradients_of_everything_at_once(aot: bool) -> None:
    """Compiled by AOTAutograd: inputs, weights and biases get their gradients, weights that are shared the sum."""

    def function(x: Tensor, v: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        h = F.softshrink(F.linear(x, v, b), 0.2)
        gated = F.linear(F.silu(F.linear(h, v)) * F.linear(h, v, b), w)
        return gated, h * 2, F.relu(torch.addmm(b, x, v), inplace=True)

    noting = assert_same(function, [X, V, W, B], aot=aot)
    assert noting.ops == ["linear_act(softshrink(lambd=0.2))", "gated_mlp(silu)", "linear_act(relu)"]


# ---- shapes, parameters and values that change ----


class HiddenTwice(nn.Module):
    """For one row without a batch, what the first layer gives looks like a bias of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return h + self.second(h)


def elu_and_dropout(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(F.elu(x), 0.0), training=False)


@pytest.mark.parametrize("function", [F.leaky_relu, F.softshrink, F.gelu, elu_and_dropout])
@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_result_written_in_place(function: Callable[[Tensor], Tensor], backend: str) -> None:
    """Where the op keeps its result for the gradient, and the function its argument, it is left in training."""
    layer = nn.Linear(6, 6).double()

    def block(x: Tensor) -> Tensor:
        h = function(layer(x))
        h += x
        return h

    x = rand(4, 6)
    results = []
    for called in (torch.compile(block, backend="fastops", options={"backend": backend}), block):
        y = called(x)
        results.append([y, *torch.autograd.grad((y**2).sum(), list(layer.parameters()))])
    torch.testing.assert_close(*results)


def test_argument_that_is_computed_inside() -> None:
    """Is no argument: the ops are smaller."""
    softplus = lambda x: (lambda s: x * torch.tanh(s) * s)(torch.nn.functional.softplus(x))  # noqa: E731
    for function, sizes in (
        (HiddenTwice(), (6,)),
        (lambda h: torch.nn.functional.linear(h, h), (3, 3)),
        (softplus, (4,)),
    ):
        torch._dynamo.reset()
        x = torch.randn(sizes)
        torch.testing.assert_close(torch.compile(function, backend="fastops")(x), function(x))


def test_dynamic_shapes() -> None:
    """One graph for all numbers of rows, with the module's parameter in it."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Softshrink(0.3), nn.Linear(6, 5)).double()
    call, noting = compiled(model, aot=True, dynamic=True)
    torch.testing.assert_close(call(X), model(X))
    graphs = len(noting.reports)
    for rows in (7, 9):
        torch.testing.assert_close(call(rand(rows, 6)), model(rand(rows, 6)))
    assert len(noting.reports) == graphs
    assert noting.ops[-1] == "mlp of 2 layers(softshrink(lambd=0.3))"
    model[1].lambd = 0.1
    torch.testing.assert_close(call(X), model(X))
    assert noting.ops[-1] == "mlp of 2 layers(softshrink(lambd=0.1))"


def test_exported_model() -> None:
    """What torch.export takes an activation apart into: aten.elu has SELU's two numbers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.Linear(8, 5)).double()
    exported = torch.export.export(model, (X,)).run_decompositions().module()
    call, noting = compiled(exported)
    torch.testing.assert_close(call(X), model(X))
    assert noting.ops == ["mlp of 2 layers(selu)"]


def test_parameters_stay_live() -> None:
    """Weights that change later count."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5)).double()
    call, noting = compiled(model, aot=True)
    call(X)
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(call(X), model(X))
    model.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})
    torch.testing.assert_close(call(X), model(X))
    assert len(noting.reports) == 1


# ---- models ----

OPS = {
    "timm ViT": ["mlp of 2 layers(gelu)"] * 2,
    "timm ViT, SwiGLU": ["gated_mlp(gelu)"] * 2,
    "timm Swin": ["mlp of 2 layers(gelu)"] * 2,
    "timm MLP-Mixer": ["mlp of 2 layers(gelu)"] * 4,
    "BERT": ["mlp of 2 layers(gelu)"] * 2 + ["linear_act(gelu)"],
    "GPT-2": ["mlp of 2 layers(gelu_tanh)"] * 2,
    "LLaMA": ["gated_mlp(silu)"] * 2,
    "Gemma": ["gated_mlp(gelu_tanh)"] * 2,
    "CLIP": ["mlp of 2 layers(quick_gelu)"] * 2,
    "T5": ["mlp of 2 layers(relu)"] * 2,
    "T5, gated": ["gated_mlp(gelu_tanh)"] * 2,
}


@pytest.mark.parametrize("kind", OPS)
def test_models(kind: str) -> None:
    """The blocks of timm and transformers, with the gradients of all parameters."""
    make, batch, *_ = MODELS[kind]
    torch.manual_seed(0)
    model = make().double().eval()
    inputs = batch()
    call, noting = compiled(model)
    results = []
    for each in (call, model):
        output = each(inputs)
        output = output if isinstance(output, Tensor) else output[0]
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        loss = (output * torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)).sum()
        results.append([output, *torch.autograd.grad(loss, parameters, allow_unused=True)])
    torch.testing.assert_close(*results)
    assert noting.ops == OPS[kind], noting.reasons


# ---- graphs made at random ----

STEPS: dict[str, Callable[[Tensor, list[Tensor]], Tensor]] = {
    "linear": lambda x, seen: F.linear(x, V, B),
    "matmul": lambda x, seen: x @ V,
    "bias": lambda x, seen: x + B,
    "bias_": lambda x, seen: x.add_(B),
    "relu": lambda x, seen: F.relu(x),
    "relu_": lambda x, seen: F.relu(x, inplace=True),
    "silu": lambda x, seen: x * torch.sigmoid(x),
    "gelu": lambda x, seen: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "mish": lambda x, seen: F.mish(x),
    "tanh_": lambda x, seen: torch.tanh_(x),
    "mul_": lambda x, seen: x.mul_(0.9),
    "write to a part": lambda x, seen: x.view(-1)[:3].mul_(0.5).sum() * 0 + x,
    "residual": lambda x, seen: x + seen[len(seen) // 2],
    "gate": lambda x, seen: torch.sigmoid(x) * seen[-1],
    "gate by the first": lambda x, seen: x * F.mish(seen[0]),
    "view": lambda x, seen: x.reshape(2, 12).reshape(4, 6),
    "off": lambda x, seen: F.dropout(x, 0.3, False),
    "half": lambda x, seen: torch.cat([F.silu(x[..., :3]) * x[..., 3:]] * 2, -1),
}


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=9), st.sets(st.integers(0, 8)))
def test_random_graphs(steps: list[str], returned: set[int]) -> None:
    """Whatever comes together, in-place or not, the results are eager's."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        seen = [x * 1.5]
        for step in steps:
            seen.append(STEPS[step](seen[-1], seen))
        return (seen[-1], *(seen[i] for i in sorted(returned) if i < len(seen)))

    try:
        function(X.clone().requires_grad_())[0].sum().backward()
    except RuntimeError:  # autograd needs what was written to
        return
    assert_same(function, [X])
