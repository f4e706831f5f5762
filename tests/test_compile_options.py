"""torch.compile(backend="fastops"): its options, who computes the rest, and training."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compiled import V, X, rand, two_layers
from fastops.compile import fusion
from processes import run


def train(model: nn.Module, call: Callable[[Tensor], Tensor], batch: Tensor, target: Tensor) -> list[float]:
    """The losses of 50 steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = F.mse_loss(call(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("rest", [False, True], ids=["all fused", "Inductor has a part"])
def test_the_same_losses_over_50_steps(rest: bool) -> None:
    """The network with softshrink, in float32."""
    torch.manual_seed(0)
    layers = [nn.Linear(20, 16), nn.Softshrink(), nn.Linear(16, 16), nn.Softshrink(), nn.Linear(16, 3)]
    model = nn.Sequential(*([nn.LayerNorm(20)] if rest else []), *layers)
    reference = copy.deepcopy(model)
    batch, target = rand(32, 20, dtype=torch.float32), rand(32, 3, dtype=torch.float32, seed=9)
    torch._dynamo.reset()
    call = torch.compile(model, backend="fastops", options={"check": True})
    losses, expected = train(model, call, batch, target), train(reference, reference, batch, target)
    assert losses[-1] < 0.7 * losses[0]
    assert losses == pytest.approx(expected, rel=1e-4)


def test_who_computes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor gets a graph where something is left for it, or where it was given options."""
    module = importlib.import_module("fastops.compile.backend")
    compile_rest, given = module._compile, []
    monkeypatch.setattr(module, "_compile", lambda *arguments: given.append(1) or compile_rest(*arguments))
    transposed = V.t().contiguous()
    cases: list[tuple[Callable[..., Tensor], dict[str, Any], int]] = [
        (two_layers, {}, 0),
        (lambda x: F.relu(x @ transposed), {}, 0),
        (lambda x: two_layers(x).cumsum(0), {}, 1),
        (two_layers, {"options": {"max_autotune": False}}, 1),
        (two_layers, {"mode": "max-autotune-no-cudagraphs"}, 1),
    ]
    for function, options, count in cases:
        torch._dynamo.reset()
        given.clear()
        call = torch.compile(function, backend="fastops", **options)
        for batch in (X, X.clone().requires_grad_()):
            torch.testing.assert_close(call(batch), function(batch))
        assert len(given) == 2 * count


def test_check_leaves_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both graphs draw the same numbers; nobody else's are changed, and those of other devices are not looked at."""
    from fastops.compile import check

    monkeypatch.setattr(torch, "manual_seed", None)  # seeds every device
    torch._dynamo.reset()
    before = torch.get_rng_state()
    dropped = torch.compile(
        lambda x: F.dropout(F.silu(F.linear(x, V))), backend="fastops", options={"check": True, "backend": "eager"}
    )
    dropped(X)
    torch.set_rng_state(before)
    expected = F.dropout(F.silu(F.linear(X, V)))
    torch.set_rng_state(before)
    torch._dynamo.reset()
    torch.testing.assert_close(dropped(X), expected)

    states, seeds = [torch.tensor([5])], []
    module = SimpleNamespace(
        get_rng_state=lambda: states[-1], set_rng_state=states.append, manual_seed=lambda seed: seeds.append(seed)
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "device_index", lambda index: contextlib.nullcontext())
    with check._seeded({torch.device("cuda", 1), torch.device("cpu")}):
        assert seeds == [0]
        states.append(torch.tensor([6]))
    assert states[-1] is states[0]


def test_registered() -> None:
    """The entry point; Inductor's options and modes go to Inductor."""
    assert "fastops" in torch._dynamo.list_backends(None)
    torch._dynamo.reset()
    call = torch.compile(two_layers, backend="fastops", options={"backend": "aot_eager", "check": True})
    torch.testing.assert_close(call(X), two_layers(X))
    with pytest.raises(RuntimeError, match="no_such_option"):
        torch.compile(lambda x: x + 1, backend="fastops", options={"no_such_option": 1})(X)


def test_registered_without_metadata() -> None:
    """So it is where the package's metadata, with its entry point, is missing; nothing of it is imported before."""
    done = run(
        "-c",
        "import sys, importlib.metadata as metadata\n"
        "metadata.entry_points = lambda **_: metadata.EntryPoints()\n"
        "import torch, fastops, torch._dynamo\n"
        "assert 'fastops' in torch.compiler.list_backends() and 'fastops.compile' not in sys.modules\n"
        "assert torch.compile(lambda x: x.relu() + 1, backend='fastops')(torch.ones(2)).tolist() == [2, 2]\n"
        "assert 'fastops.compile.backend' in sys.modules",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", ["", "torch.compiler.list_backends()\nimport fastops"], ids=["not imported", "late"])
def test_registered_in_any_order(before: str) -> None:
    """It need not be imported, and may be at any time."""
    done = run(
        "-c",
        f"import torch\n{before}\n"
        "compiled = torch.compile(torch.nn.Linear(3, 2), backend='fastops', options={'backend': 'eager'})\n"
        "assert compiled(torch.ones(4, 3)).shape == (4, 2)\n"
        "assert torch.compiler.list_backends().count('fastops') == 1",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["output 0", "the gradient of input 0"])
def test_check_finds_what_is_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An op that computes something else is found at the first call, in outputs and in gradients."""
    torch._dynamo.reset()
    plan = fusion._linear_act

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 1.001

    def wrong(layer: Any) -> Any:
        made = plan(layer)
        return made._replace(arguments=(*made.arguments[:3], "relu", [])) if what == "output 0" else made

    if what != "output 0":
        real = fusion._op
        torch.compiler.allow_in_graph(Wrong)
        monkeypatch.setattr(fusion, "_op", lambda name: lambda *arguments: Wrong.apply(real(name)(*arguments)))
    monkeypatch.setattr(fusion, "_linear_act", wrong)
    call = torch.compile(
        lambda x: F.silu(F.linear(x, V)), backend="fastops", options={"check": True, "backend": "eager"}
    )
    with pytest.raises(RuntimeError, match=f"{what} of the fused graph is wrong.*linear_act"):
        call(X.clone().requires_grad_())
