"""What ``torch.compile(model, backend="fastops")`` makes of a model, for people to read."""

from __future__ import annotations

import dataclasses
import operator
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from .._torch_internal import OpOverload
from .._warn import warn
from .backend import copy_of
from .fusion import Report, fuse_graph


class Cost(NamedTuple):
    """What running a graph takes if each of its ops is one kernel, as without Inductor's own fusion.

    Attributes:
        kernels: how many there are, forward and backward together; views are none.
        bytes_moved: what they read and write.
        bytes_kept: what the forward pass keeps for the backward pass, besides inputs and parameters.
    """

    kernels: int
    bytes_moved: int
    bytes_kept: int


class Passes(NamedTuple):
    """The graphs of AOTAutograd; ``backward`` is None where nothing needs a gradient.

    The ``forward`` graph gives its ``outputs`` first, and then what it keeps for the backward pass.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    outputs: int

    @property
    def cost(self) -> Cost:
        """Of both together."""
        graphs = [graph.graph for graph in (self.forward, self.backward) if graph is not None]
        kernels = [node for graph in graphs for node in graph.nodes if _is_kernel(node)]
        outputs: Any = self.forward.graph.output_node().args[0]
        kept = {node for node in outputs[self.outputs :] if isinstance(node, fx.Node) and node.op != "placeholder"}
        kept = kept - set(outputs[: self.outputs]) if self.backward is not None else set()
        return Cost(len(kernels), sum(map(_bytes_moved, kernels)), sum(_bytes(node.meta.get("val")) for node in kept))


@dataclasses.dataclass(frozen=True)
class ExplainedGraph:
    """One of the graphs that Dynamo captured.

    Attributes:
        captured: as Dynamo gave it.
        fused: with fused ops.
        report: ``fused`` and ``left``: what was replaced, and what was not and why.
        before, after: the forward and backward graphs of ``captured`` and ``fused``.
    """

    captured: fx.GraphModule
    fused: fx.GraphModule
    report: Report
    before: Passes
    after: Passes

    def files(self) -> Iterator[tuple[str, fx.GraphModule]]:
        """The graphs by the names that :meth:`Explanation.save` gives them."""
        yield "captured", self.captured
        yield "fused", self.fused
        for name, passes in (("before", self.before), ("after", self.after)):
            yield f"forward_{name}", passes.forward
            if passes.backward is not None:
                yield f"backward_{name}", passes.backward


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; ``str`` gives it as text.

    Attributes:
        graphs: one for each piece that Dynamo captured.
        breaks: why there is more than one.
    """

    graphs: list[ExplainedGraph]
    breaks: list[str]

    def tables(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """Tables with their titles; the first row has the headings."""
        for i, graph in enumerate(self.graphs):
            fused = [(one.op, ", ".join(one.replaced)) for one in graph.report.fused]
            if fused:
                yield f"graph {i}: fused", [("op", "in the place of"), *fused]
            if graph.report.left:
                yield f"graph {i}: left", [("node", "what", "why"), *map(tuple, graph.report.left)]
            costs = zip(Cost._fields, graph.before.cost, graph.after.cost, strict=True)
            rows = [(name.replace("_", " "), f"{b:,}", f"{a:,}", f"{b - a:,}") for name, b, a in costs]
            yield f"graph {i}: forward and backward, before Inductor", [("", "captured", "fused", "saved"), *rows]
        if self.breaks:
            yield "graph breaks", [("why",), *((reason,) for reason in self.breaks)]

    def print(self) -> None:
        """Shows the tables in the terminal.

        Raises:
            ModuleNotFoundError: rich is not installed.
        """
        try:
            from rich.console import Console
            from rich.table import Table
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "fastops.compile.explain: tables in the terminal need rich: pip install rich; str() does without"
            ) from error
        for title, (headings, *rows) in self.tables():
            table = Table(*headings, title=title, title_justify="left")
            for row in rows:
                table.add_row(*row)
            Console().print(table)

    def save(self, folder: str | pathlib.Path) -> list[pathlib.Path]:
        """Writes ``summary.txt``, and each graph as Python code and, where pydot and Graphviz are, as a drawing.

        Where one of these is missing, a UserWarning names it, and there are no drawings.

        Args:
            folder: is made where it is not there.

        Returns:
            The files: ``graph0_captured.py``, ``graph0_captured.svg``, ``graph0_forward_after.py``, ...

        Raises:
            OSError: the folder cannot be made or written to.
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / "summary.txt"]
        written[0].write_text(f"{self}\n", encoding="utf-8")
        draw = _drawer()
        for i, graph in enumerate(self.graphs):
            for name, module in graph.files():
                written.append(folder / f"graph{i}_{name}.py")
                written[-1].write_text(module.print_readable(print_output=False), encoding="utf-8")
                if draw is not None:
                    written.append(folder / f"graph{i}_{name}.svg")
                    written[-1].write_bytes(draw(module, name))
        return written

    def __str__(self) -> str:
        return "\n\n".join("\n".join([title, *_aligned(rows)]) for title, rows in self.tables())


def explain(model: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Explanation:
    """What ``torch.compile(model, backend="fastops")`` captures for these inputs, what it fuses, and what not and why.

    The model is run once, with fused ops, uncompiled. All that was compiled before is forgotten
    (``torch.compiler.reset``).

    Args:
        model: a module or function.
        inputs: what to call it with.
        dynamic: as for ``torch.compile``.

    Returns:
        An :class:`Explanation`: ``print(explanation)`` or ``explanation.print()`` for the tables, ``.save(folder)``
        for the graphs.

    Raises:
        Exception: whatever the model raises for these inputs.
    """
    captured: list[tuple[fx.GraphModule, fx.GraphModule, Report, list[Any]]] = []

    def capture(graph: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        original = copy_of(graph)
        captured.append((original, graph, fuse_graph(graph), [_meta(value) for value in example_inputs]))
        return graph.forward

    from .._torch_internal import counters

    torch.compiler.reset()
    counter = counters["graph_break"]
    known = set(counter)
    try:
        torch.compile(model, backend=capture, dynamic=dynamic)(*inputs)
    finally:
        torch.compiler.reset()
    breaks = [" ".join(reason.split("\n")[:2]) for reason in counter if reason not in known]
    graphs = [
        ExplainedGraph(original, fused, report, _passes(original, example), _passes(fused, example))
        for original, fused, report, example in captured
    ]
    return Explanation(graphs, breaks)


def _meta(value: Any) -> Any:
    """A tensor of the same kind that can be kept: the run may write to the input."""
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _passes(graph: fx.GraphModule, inputs: Sequence[Any]) -> Passes:
    """The graphs that AOTAutograd makes, divided as Inductor has it."""
    from .._torch_internal import aot_module_simplified, partition

    made: list[Passes] = []

    def divide(joint: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        forward, backward = partition(joint, joint_inputs, **options)
        made.append(Passes(forward, backward, options["num_fwd_outputs"]))
        return forward, backward

    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        made.append(Passes(gm, None, 0))  # where the graph is not divided
        return gm.forward

    aot_module_simplified(copy_of(graph), list(inputs), fw_compiler=compiler, bw_compiler=compiler, partition_fn=divide)
    return made[0]


def _is_kernel(node: fx.Node) -> bool:
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return False
    gives_tensors = isinstance(node.meta.get("val"), (Tensor, tuple, list))
    return gives_tensors and not (isinstance(target, OpOverload) and target.is_view)


def _bytes_moved(node: fx.Node) -> int:
    return sum(_bytes(value.meta.get("val")) for value in (*node.all_input_nodes, node))


def _bytes(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    if not isinstance(value, Tensor):
        return 0
    count = value.numel()
    return value.element_size() * (count if isinstance(count, int) else count.node.hint or 0)


def _drawer() -> Callable[[fx.GraphModule, str], bytes] | None:
    """Draws a graph as SVG; None, with a warning, where something for it is missing."""
    import shutil

    try:
        import pydot  # noqa: F401
    except ModuleNotFoundError:
        missing = "pydot (pip install pydot)"
    else:
        missing = "" if shutil.which("dot") else "Graphviz's program dot (Debian: apt install graphviz)"
    if missing:
        warn(f"fastops.compile.explain: no drawings, which need {missing}")
        return None
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    def draw(module: fx.GraphModule, name: str) -> bytes:
        drawing: Any = FxGraphDrawer(module, name).get_dot_graph()
        svg: bytes = drawing.create_svg()
        return svg

    return draw


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
