"""Threads that share a graph, and hooks that come back to the node that called them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import fastops
from sample import Sample, close
from samples import each_differentiable_op, each_differentiable_rule
from strategies import DEVICE

TWICE = "Trying to backward through the graph a second time"
THREADS = 3

# Device threads of the autograd engine take one node after the other.
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="on the CPU, each thread computes its own backward pass")


def at_once(work: Callable[[], Any], threads: int = THREADS) -> list[Any]:
    """What ``work`` returns to each thread, or its RuntimeError."""
    results: list[Any] = []
    start = threading.Barrier(threads)

    def run() -> None:
        start.wait()
        try:
            result = work()
        except RuntimeError as error:
            result = error
        results.append(result)

    running = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    return results


def successes(results: list[Any], expected: Any) -> int:
    """How many threads got the expected gradients; the others must have got PyTorch's error."""
    errors = [result for result in results if isinstance(result, RuntimeError)]
    assert all(TWICE in str(error) for error in errors), errors
    for result in results:
        if not isinstance(result, RuntimeError):
            close(result, expected)
    return len(results) - len(errors)


def slow(saved: Tensor) -> Tensor:
    """Unpacks a saved tensor while other threads arrive."""
    time.sleep(0.002)
    return saved


class Graph:
    """A call of an op, and its gradients."""

    def __init__(self, sample: Sample, device: Any, unpack: Callable[[Tensor], Tensor] = lambda saved: saved) -> None:
        self.inputs = sample.tensors(device, requires_grad=True)
        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            results = sample.call(*self.inputs)
        self.results = [result for result in results if result.requires_grad]
        self.cotangents = [torch.cos(result.detach()) for result in self.results]

    def gradients(self, **options: bool) -> tuple[Tensor, ...]:
        """Those of the inputs, zero for one that has none."""
        return torch.autograd.grad(self.results, self.inputs, self.cotangents, materialize_grads=True, **options)

    def is_released(self) -> bool:
        """Whether the gradients can be had no more."""
        try:
            self.gradients()
        except RuntimeError as error:
            assert TWICE in str(error)
            return True
        return False

    def keeps_nothing(self) -> bool:
        """Whether the gradients can be had any number of times. They are gone otherwise."""
        self.gradients()
        return not self.is_released()

    def is_one_node_of_ours(self) -> bool:
        """Not a composition with PyTorch's ops: their nodes let two threads pass now and then, and hang in hooks."""
        nodes = {result.grad_fn for result in self.results}
        node = nodes.pop()
        behind = {next_node.name() for next_node, _ in node.next_functions if next_node}
        keep_nothing = {"torch::autograd::AccumulateGrad", "CloneBackward0"}
        return not nodes and node.name().startswith("Fastops") and behind <= keep_nothing


@each_differentiable_op
def test_one_thread_traverses_the_graph(sample: Sample, device: Any) -> None:
    """Without retain_graph one of several threads gets the gradients, the others PyTorch's error."""
    expected = Graph(sample, device).gradients()
    graph = Graph(sample, device, slow)
    count = successes(at_once(graph.gradients), expected)
    if Graph(sample, device).keeps_nothing():
        assert count == THREADS
    else:
        assert count == 1 if graph.is_one_node_of_ours() else count >= 1
        assert graph.is_released()


@each_differentiable_op
def test_all_threads_traverse_a_graph_that_is_retained(sample: Sample, device: Any) -> None:
    """With retain_graph all of several threads get the gradients."""
    expected = Graph(sample, device).gradients()
    graph = Graph(sample, device, slow)
    assert successes(at_once(lambda: graph.gradients(retain_graph=True)), expected) == THREADS


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("module", [fastops.nn.MLP, fastops.nn.GatedMLP])
def test_gradients_are_accumulated_once(module: Any, checkpoint: bool, device: Any) -> None:
    """backward() by several threads, at every moment, adds up the gradients of one of them."""
    torch.manual_seed(0)
    model = module(8, 16, 4, checkpoint=checkpoint, device=device)
    x = torch.randn(32, 8, device=device)
    model(x).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    for _ in range(100):
        model.zero_grad(set_to_none=True)
        loss = model(x).sum()
        results = at_once(loss.backward)
        assert results.count(None) == 1
        assert all(result is None or TWICE in str(result) for result in results)
        close([parameter.grad for parameter in model.parameters()], expected)


@pytest.mark.parametrize("inner", ["release", "retain_graph", "create_graph"])
@each_differentiable_rule
def test_hooks_that_come_back(sample: Sample, inner: str, device: Any) -> None:
    """Hooks on saved tensors may ask for the gradients that they are called for; what they release stays until then."""
    expected = Graph(sample, device).gradients()
    options = {} if inner == "release" else {inner: True}
    inside = False

    def come_back(saved: Tensor) -> Tensor:
        nonlocal inside
        if not inside:
            inside = True
            close(graph.gradients(**options), expected)
            inside = False
        return saved

    graph = Graph(sample, device, come_back)
    if not graph.is_one_node_of_ours():
        pytest.skip("nodes of PyTorch's")

    def work() -> None:
        # What is computed to be differentiated in turn saves tensors, too.
        with saved_tensors_hooks(come_back, lambda saved: saved):
            close(graph.gradients(create_graph=inner == "create_graph", retain_graph=True), expected)

    assert at_once(work, threads=1) == [None]
    inside = True
    assert graph.is_released() == (inner == "release" and not Graph(sample, device).keeps_nothing())
