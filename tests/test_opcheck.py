"""The ops' registrations: schemas, fake tensors, torch.compile and torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import fastops
import fastops.nn
from sample import Sample, as_tuple, close
from samples import SAMPLES, each_rule
from strategies import DEVICE, WIDEST

ops = torch.ops.fastops

# All that there are. The one of autograd knows no MPS tensors.
CHECKS = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
if DEVICE != "mps":
    CHECKS.append("test_autograd_registration")


def test_every_op_has_a_sample() -> None:
    """An op without a sample call would go untested: add it to samples.py."""
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fastops::")}
    assert registered == {f"fastops::{sample.op}" for sample in SAMPLES}


@each_rule
@pytest.mark.feature("opcheck")
def test_opcheck(sample: Sample, device: Any) -> None:
    """PyTorch's own checks of a custom op: schema, autograd registration, fake tensors, compiled with gradients."""
    tensors = sample.tensors(device, requires_grad=sample.differentiable)
    torch.library.opcheck(sample.overload, sample.arguments(*tensors), sample.keywords(*tensors), test_utils=CHECKS)


@pytest.mark.parametrize("sample", {sample.op: sample for sample in SAMPLES}.values(), ids=str)
def test_opcheck_without_gradient(sample: Sample, device: Any) -> None:
    """The same where nothing requires a gradient."""
    tensors = sample.tensors(device)
    torch.library.opcheck(sample.overload, sample.arguments(*tensors), sample.keywords(*tensors), test_utils=CHECKS)


# ---- fake and meta tensors ----


@each_rule
@pytest.mark.feature("meta")
def test_meta_tensors(sample: Sample, device: Any) -> None:
    """On the meta device the results have the shapes, dtypes and strides that they have on a real one."""
    for dtype in (torch.float32, torch.bfloat16):
        results = []
        for place in (device, "meta"):
            tensors = [tensor.to(place, dtype) for tensor in sample.tensors(device)]
            results.append(as_tuple(sample.call(*tensors)))
        for real, meta in zip(*results, strict=True):
            assert meta.is_meta
            assert (real.shape, real.dtype, real.stride()) == (meta.shape, meta.dtype, meta.stride())


def symbolic(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A fake tensor with all sizes symbolic."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context)


@each_rule
@pytest.mark.feature("symbolic sizes")
def test_symbolic_sizes(sample: Sample, device: Any) -> None:
    """With symbolic sizes the op computes symbolic shapes, and the number of rows stays unknown.

    Those of a point are known from the other arguments.
    """
    tensors = sample.tensors(device)
    known = tensors[0].size(-2) if sample.of_points else None
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = [symbolic(mode, tensor) for tensor in tensors]
        results = sample.call(*fake)
    sizes = [size for tensor in [*fake, *results] for size in tensor.shape]
    numbers = [size for size in sizes if isinstance(size, int) or size.node.expr.is_number]
    assert all(size == known for size in numbers)
    for result, real in zip(results, sample.call(*tensors), strict=True):
        assert [size if isinstance(size, int) else size.node.hint for size in result.shape] == list(real.shape)
        assert result.dtype == real.dtype


# ---- torch.compile and torch.export ----


class Activations(nn.Module):
    """Those of fastops.nn, in one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(getattr(fastops.nn, name)() for name in fastops.nn._activations.MODULES)

    def forward(self, x: Tensor) -> Tensor:
        """Their values one after another."""
        return torch.cat([activation(x) for activation in self.each])


MODULES = {
    "MLP": lambda: fastops.nn.MLP(6, [8, 5], 4, activation=nn.Softshrink(0.1), output_activation="tanh"),
    "MLP without bias": lambda: fastops.nn.MLP(6, 8, activation="gelu", bias=False),
    "MLP in training with dropout": lambda: fastops.nn.MLP(6, 8, activation="silu", dropout=1.0),
    "GatedMLP": lambda: fastops.nn.GatedMLP(6, 8),
    "GatedMLP with bias": lambda: fastops.nn.GatedMLP(6, 8, 2, activation="gelu_tanh", bias=True),
    "LinearAct": lambda: fastops.nn.LinearAct(6, 4, "mish"),
    "Softshrink": fastops.nn.Softshrink,
    "activations": Activations,
}


def module(kind: str, device: Any) -> nn.Module:
    """A module in the widest dtype with the same parameters in every call."""
    torch.manual_seed(0)
    return MODULES[kind]().to(device, WIDEST)


def batch(rows: int, device: Any) -> Tensor:
    """A [rows, 6] input that requires a gradient."""
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 6, generator=generator, dtype=torch.float64).to(device, WIDEST).requires_grad_()


def forward_and_backward(function: Any, parameters: list[Tensor], x: Tensor) -> list[Tensor]:
    """The value and the gradients of the input and the parameters."""
    value = function(x)
    return [value, *torch.autograd.grad((value**2).sum(), [x, *parameters])]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", MODULES)
def test_compile(kind: str, dynamic: bool, device: Any) -> None:
    """Compiled without graph breaks, a module has the eager values and gradients, for several batch sizes."""
    torch._dynamo.reset()
    eager = module(kind, device)
    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    parameters = list(eager.parameters())
    for rows in (5, 7):
        x = batch(rows, device)
        close(forward_and_backward(compiled, parameters, x), forward_and_backward(eager, parameters, x))


def test_compile_does_not_specialize_on_batch(device: Any) -> None:
    """A dynamic batch is compiled for the first size only."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module("MLP", device), fullgraph=True, backend=counter, dynamic=True)
    counts = []
    for rows in (5, 7, 9):
        compiled(batch(rows, device)).sum().backward()
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 3


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_compile_in_place_and_out(name: str, device: Any) -> None:
    """Compiled functions write into their arguments as eager ones do."""
    torch._dynamo.reset()

    def function(x: Tensor, changed: Tensor, out: Tensor) -> Tensor:
        getattr(ops, f"{name}_")(changed)
        getattr(ops, f"{name}_")(changed[1:])
        getattr(ops, name).out(x, out=out)
        return ops.bias_act.out(x, x[0].clone(), name, out=x) + changed

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        tensors = [batch(3, device).detach() for _ in range(3)]
        results.append([run(*tensors), *tensors])
    close(*results)


@pytest.mark.parametrize("name", ["gelu", "tanh"])
def test_compile_in_place_with_gradient(name: str, device: Any) -> None:
    """What a compiled function returns is the argument that it wrote into, with the gradient of what it wrote."""
    torch._dynamo.reset()
    in_place = getattr(ops, f"{name}_")
    results = []
    for run in (in_place, torch.compile(in_place, fullgraph=True, backend="aot_eager")):
        x = batch(3, device)
        written = x.clone()
        returned = run(written)
        assert returned.data_ptr() == written.data_ptr()
        results.append([written, *torch.autograd.grad((written**2).sum(), x, retain_graph=True)])
        results[-1] += torch.autograd.grad((returned**3).sum(), x)
    close(*results)


def test_compile_double_backward_through_functional(device: Any) -> None:
    """Transforms of torch.func inside a compiled function give the eager values."""
    torch._dynamo.reset()
    mlp = module("MLP", device)

    def laplacian(x: Tensor) -> Tensor:
        total = lambda row: mlp(row).sum()  # noqa: E731
        return torch.func.vmap(lambda row: torch.func.hessian(total)(row).diagonal().sum())(x)

    x = batch(3, device).detach()
    close(torch.compile(laplacian, fullgraph=True, backend="aot_eager")(x), laplacian(x))


@pytest.mark.parametrize("kind", ["MLP", "MLP without bias", "GatedMLP", "LinearAct", "Softshrink"])
def test_export(kind: str, device: Any) -> None:
    """An exported module with a dynamic batch gives the eager values and holds the op itself."""
    eager = module(kind, device).eval()
    rows = torch.export.Dim("rows", min=2, max=100)
    program = torch.export.export(eager, (batch(4, device).detach(),), dynamic_shapes=({0: rows},))
    calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [call.split(".")[0] for call in calls] == ["fastops"]
    for count in (2, 9):
        x = batch(count, device).detach()
        close(program.module()(x), eager(x))


def test_export_saves_and_loads(tmp_path: Any, device: Any) -> None:
    """An exported module gives the same values once saved and loaded."""
    mlp = module("MLP", device).eval()
    x = batch(4, device).detach()
    torch.export.save(torch.export.export(mlp, (x,)), tmp_path / "mlp.pt2")
    close(torch.export.load(tmp_path / "mlp.pt2").module()(x), mlp(x))
