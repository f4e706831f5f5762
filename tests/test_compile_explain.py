"""fastops.compile.explain: tables, code and drawings."""

from __future__ import annotations

import builtins
import pathlib
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
import fastops.compile
from compiled import rand


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network with something to fuse and something to leave."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())


@pytest.fixture(scope="module")
def explanation(model: nn.Module) -> fastops.compile.Explanation:
    """Of the network."""
    return fastops.compile.explain(model, rand(4, 6, dtype=torch.float32))


def test_what_was_fused_and_what_not(explanation: fastops.compile.Explanation) -> None:
    """The table names the op, what it replaced, and the reason for what was left."""
    text = str(explanation)
    assert "mlp of 2 layers(gelu)" in text and "input_1, input_2, input_3" in text
    assert "Inductor computes it together" in text
    assert [left.what for left in explanation.graphs[0].report.left] == ["relu"]
    assert not explanation.breaks


def test_costs(explanation: fastops.compile.Explanation) -> None:
    """The fused graph has one op for the MLP in each pass, and keeps less."""
    (graph,) = explanation.graphs
    assert graph.after.backward is not None
    for passes in (graph.after.forward, graph.after.backward):
        ops = [str(node.target) for node in passes.graph.nodes if "fastops" in str(node.target)]
        assert len(ops) == 1
    assert graph.after.cost.kernels <= graph.before.cost.kernels - 7  # products and GELU, and their derivatives
    assert graph.after.cost.bytes_moved < graph.before.cost.bytes_moved


def test_counts_by_hand() -> None:
    """Softshrink of a layer, without gradients: a product and an activation become one kernel."""
    w = rand(8, 6, dtype=torch.float32)
    x = rand(4, 6, dtype=torch.float32)
    explanation = fastops.compile.explain(lambda x: F.relu(F.linear(x, w)), x)
    (graph,) = explanation.graphs
    product, result = 4 * (4 * 6 + 6 * 8 + 4 * 8), 4 * 4 * 8
    assert graph.before.cost == (2, product + 2 * result, 0)
    assert graph.after.cost == (1, product, 0)
    assert graph.before.backward is None


def test_kept_by_hand() -> None:
    """With checkpoint=True nothing is kept; without, the hidden layer."""
    x = rand(4, 6, dtype=torch.float32)
    for checkpoint, kept in ((False, 4 * 4 * 8), (True, 0)):
        mlp = fastops.nn.MLP(6, 8, 3, activation="softshrink", checkpoint=checkpoint)
        (graph,) = fastops.compile.explain(mlp, x).graphs
        assert graph.after.cost.bytes_kept == kept


def test_both_passes_count() -> None:
    """An MLP is one kernel in each pass."""
    (graph,) = fastops.compile.explain(fastops.nn.MLP(6, 8, 3), rand(4, 6, dtype=torch.float32)).graphs
    assert graph.after.cost.kernels == 2


def test_graph_breaks(model: nn.Module) -> None:
    """Each piece is explained, and why there are several."""

    def function(x: Tensor) -> Tensor:
        y = model(x)
        torch._dynamo.graph_break()
        return F.mish(F.linear(y, y))

    explanation = fastops.compile.explain(function, rand(4, 6, dtype=torch.float32))
    assert [[fused.op for fused in graph.report.fused] for graph in explanation.graphs] == [
        ["mlp of 2 layers(gelu)"],
        ["linear_act(mish)"],
    ]
    assert any("graph_break" in reason for reason in explanation.breaks)
    assert "graph breaks" in str(explanation)


def test_inputs_are_not_changed_twice() -> None:
    """The model runs once."""
    x = torch.zeros(3)
    fastops.compile.explain(lambda x: x.add_(1), x)
    assert x.tolist() == [1.0] * 3


def test_files(explanation: fastops.compile.Explanation, tmp_path: pathlib.Path) -> None:
    """Code that can be read, and drawings where they can be made."""
    pytest.importorskip("pydot")
    if shutil.which("dot") is None:
        pytest.skip("needs Graphviz")
    written = explanation.save(tmp_path / "folder")
    names = {path.name for path in written}
    graphs = ["captured", "fused", "forward_before", "backward_before", "forward_after", "backward_after"]
    assert names == {"summary.txt", *(f"graph0_{name}.{kind}" for name in graphs for kind in ("py", "svg"))}
    assert "torch.ops.fastops.mlp" in (tmp_path / "folder" / "graph0_fused.py").read_text()
    assert "fastops.mlp" in (tmp_path / "folder" / "graph0_fused.svg").read_text()
    assert "mlp_backward" in (tmp_path / "folder" / "graph0_backward_after.py").read_text()


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Lets importing a package fail."""
    real = builtins.__import__

    def failing(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named '{package}'")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", failing)


def test_without_pydot(
    explanation: fastops.compile.Explanation, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is written all the same, and what is missing is named."""
    hide(monkeypatch, "pydot")
    with pytest.warns(UserWarning, match="no drawings, which need pydot"):
        written = explanation.save(tmp_path)
    assert len(written) == 7


def test_terminal(
    explanation: fastops.compile.Explanation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables by rich, and what to do without it."""
    explanation.print()
    assert "mlp of 2 layers(gelu)" in " ".join(capsys.readouterr().out.split())
    hide(monkeypatch, "rich")
    with pytest.raises(ModuleNotFoundError, match="pip install rich"):
        explanation.print()
