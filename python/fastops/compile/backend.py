"""``torch.compile(model, backend="fastops")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

Compiled = Callable[..., Any]


def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    mode: str = "default",
) -> Compiled:
    """Fused ops in a graph that Dynamo captured; the rest is for Inductor.

    Called by ``torch.compile(model, backend="fastops", options=..., mode=...)``.

    Args:
        graph, example_inputs: from Dynamo.
        options: ``check`` (default False): at the first call of each graph, compare its outputs and gradients with
            and without fused ops. ``backend`` (default ``"inductor"``): who compiles the rest, one of
            ``torch.compiler.list_backends(None)``. All others are Inductor's.
        mode: as for Inductor.

    Raises:
        RuntimeError: with ``check``, when the results differ.
    """
    from .check import checked
    from .fusion import fuse_graph

    options = dict(options or {})
    check, rest = options.pop("check", False), options.pop("backend", "inductor")
    original = copy_of(graph) if check else None
    report = fuse_graph(graph)
    if rest == "inductor" and mode == "default" and not options and _is_ours(graph):
        compiled: Compiled = graph.forward  # nothing is left for Inductor, which takes longer than a small op to call
    else:
        compiled = _compile(rest, graph, example_inputs, options, mode)
    return checked(compiled, original, graph, [fused.op for fused in report.fused]) if original else compiled


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """The module with a graph of its own, and the same parameters."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _is_ours(graph: fx.GraphModule) -> bool:
    """Whether the graph calls fused ops and nothing else, but for transposed weights."""
    calls = [node for node in graph.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    return all(getattr(node.target, "namespace", None) == "fastops" or node.target == "t" for node in calls)


def _compile(
    backend: str, graph: fx.GraphModule, example_inputs: Sequence[Any], options: dict[str, Any], mode: str
) -> Compiled:
    if backend == "inductor":
        from .._torch_internal import compile_fx, list_mode_options

        compiled: Any = compile_fx(graph, list(example_inputs), config_patches={**list_mode_options(mode), **options})
        return compiled
    from .._torch_internal import lookup_backend

    keywords: Any = {"options": options} if options else {}
    return lookup_backend(backend)(graph, list(example_inputs), **keywords)
