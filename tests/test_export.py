"""Programs with ops of fastops: torch.export and its decompositions, ONNX, TorchScript, torch.fx.

Packages of AOTInductor are in test_cpp.py.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import fastops
import fastops.functional as F
import modules
from modules import MODULES, PAIRS, batch, each_module, seeded
from reference import ACTIVATIONS
from sample import Calls, Sample, as_tuple, close, inputs
from samples import COVERING, SAMPLES, each_rule
from strategies import WIDEST


def doubled(samples: list[Sample]) -> list[Sample]:
    """The same calls, every size twice as large, but for the rows of points."""

    def larger(sample: Sample) -> Iterator[tuple[int, ...]]:
        for i, shape in enumerate(sample.shapes):
            kept = len(shape) - 2 if i < sample.of_points else None
            yield tuple(size if d == kept else 2 * size for d, size in enumerate(shape))

    return [dataclasses.replace(sample, shapes=tuple(larger(sample))) for sample in samples]


def exported(samples: list[Sample], tensors: tuple[Tensor, ...], **options: Any) -> torch.export.ExportedProgram:
    """The calls as a program for any sizes."""
    shapes = (tuple(dict.fromkeys(range(tensor.dim()), Dim.AUTO) for tensor in tensors),)
    return torch.export.export(Calls(samples), tensors, dynamic_shapes=shapes, **options)


def targets(program: torch.export.ExportedProgram) -> set[torch._ops.OpOverload]:
    calls = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {target for target in calls if isinstance(target, torch._ops.OpOverload)}


def of_fastops(program: torch.export.ExportedProgram) -> set[str]:
    return {str(op) for op in targets(program) if op.namespace == "fastops"}


def higher_order(sample: Sample) -> bool:
    return sample.op == "activation_backward" and sample.label[-1] != "1" and not sample.label.startswith("tanh-")


def another_form(sample: Sample) -> bool:
    """In place or into a tensor, which a graph does not keep: gelu and bias_act show that for the others."""
    return sample.op.endswith(("_", ".out")) and not sample.op.startswith(("gelu", "bias_act"))


# Higher orders of one activation alone: their graphs are large. First ones of all, as their formulas differ.
FAMILIES: dict[str, list[Sample]] = {}
for each in [sample for sample in SAMPLES if sample in COVERING or sample.op == "activation_backward"]:
    if not higher_order(each) and not another_form(each):
        FAMILIES.setdefault(each.op.removesuffix(".out").removesuffix("_"), []).append(each)
# One call of every op; in a graph, its other forms have become the functional one.
EVERY_OP = [samples[0] for samples in FAMILIES.values()]


@functools.cache
def exported_family(family: str, device: Any) -> torch.export.ExportedProgram:
    return exported(FAMILIES[family], inputs(FAMILIES[family], device))


each_family = pytest.mark.parametrize("family", FAMILIES)

# ---- torch.export ----


@each_family
@pytest.mark.feature("export")
def test_export(family: str, device: Any, tmp_path: Any) -> None:
    """An exported op stays one op, and gives the eager values for other sizes, also once saved and loaded."""
    samples = FAMILIES[family]
    program = exported_family(family, device)
    assert f"fastops.{family}.default" in of_fastops(program)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    for calls in (samples, doubled(samples)):
        tensors = inputs(calls, device)
        expected = Calls(calls)(*tensors)
        close(program.module()(*tensors), expected)
        close(loaded.module()(*tensors), expected)


def test_strict_export(device: Any) -> None:
    """The same through Dynamo, for a call of every op."""
    program = exported(EVERY_OP, inputs(EVERY_OP, device), strict=True)
    assert of_fastops(program) >= {f"fastops.{family}.default" for family in FAMILIES}
    tensors = inputs(doubled(EVERY_OP), device)
    close(program.module()(*tensors), Calls(doubled(EVERY_OP))(*tensors))


@each_family
@pytest.mark.feature("decompositions")
def test_decompositions(family: str, device: Any) -> None:
    """Decomposed, a program holds no op of fastops, and gives the same values for other sizes."""
    program = exported_family(family, device).run_decompositions(fastops.decompositions())
    assert not of_fastops(program)
    samples = doubled(FAMILIES[family])
    tensors = inputs(samples, device)
    close(program.module()(*tensors), Calls(samples)(*tensors))


def test_core_decompositions(device: Any, tmp_path: Any) -> None:
    """With PyTorch's own table there are core ATen ops alone; the program can be saved."""
    table = torch.export.default_decompositions()
    table.update(fastops.decompositions())
    program = exported(EVERY_OP, inputs(EVERY_OP, device)).run_decompositions(table)
    assert all(torch.Tag.core in op.tags for op in targets(program))
    torch.export.save(program, tmp_path / "program.pt2")
    tensors = inputs(doubled(EVERY_OP), device)
    close(torch.export.load(tmp_path / "program.pt2").module()(*tensors), Calls(doubled(EVERY_OP))(*tensors))


def test_every_op_has_a_decomposition() -> None:
    """The table has every op of the samples, which have every op."""
    assert set(fastops.decompositions()) == {sample.overload for sample in SAMPLES}


# The activations in the widest dtype are those of test_decompositions, and those in 16 bits those of test_composite.py.
@pytest.mark.parametrize("dtype", [WIDEST, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", PAIRS)
def test_decomposed_modules(kind: str, dtype: torch.dtype, device: Any) -> None:
    """A module's program, decomposed with the table of fastops alone, keeps linear layers and any batch."""
    module = seeded(MODULES[kind], device, dtype).eval()
    program = torch.export.export(module, (batch(device, dtype=dtype),), dynamic_shapes=({0: Dim("rows")},))
    decomposed = program.run_decompositions(fastops.decompositions())
    assert not of_fastops(decomposed)
    layers = [node for node in decomposed.graph.nodes if node.target is torch.ops.aten.linear.default]
    assert len(layers) == len([parameter for parameter in module.parameters() if parameter.dim() == 2])
    x = batch(device, 3, 6, dtype=dtype)
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(decomposed.module()(x), module(x), rtol=tolerance, atol=tolerance)


# ---- ONNX ----


def run_onnx(program: torch.export.ExportedProgram, tensors: tuple[Tensor, ...], *further: tuple[Tensor, ...]) -> Any:
    """The results of onnxruntime for several lists of inputs."""
    onnxruntime = pytest.importorskip("onnxruntime")
    made = torch.onnx.export(program.run_decompositions(fastops.decompositions()), verbose=False)
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    for given in (tensors, *further):
        results = session.run(None, dict(zip(names, [tensor.cpu().numpy() for tensor in given], strict=True)))
        yield [torch.from_numpy(result) for result in results]


@pytest.mark.feature("ONNX", ops=EVERY_OP)
def test_onnx(device: Any) -> None:
    """Every op computes in onnxruntime what it computes here, for the sizes of the export and for others."""
    sizes = [inputs(samples, device, torch.float32) for samples in (EVERY_OP, doubled(EVERY_OP))]
    for tensors, results in zip(sizes, run_onnx(exported(EVERY_OP, sizes[0]), *sizes), strict=True):
        expected = [result.cpu() for call in Calls(EVERY_OP)(*tensors) for result in call]
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["MLP", "GatedMLP with bias", "LinearAct without bias"])
def test_onnx_modules(kind: str, device: Any) -> None:
    """Modules with parameters do so, too, for any batch."""
    module = seeded(MODULES[kind], device, torch.float32).eval()
    batches = [(batch(device, rows, 6, dtype=torch.float32),) for rows in (7, 1, 3)]
    program = torch.export.export(module, batches[0], dynamic_shapes=({0: Dim("rows")},))
    for (x,), (result,) in zip(batches, run_onnx(program, *batches), strict=True):
        torch.testing.assert_close(result, module(x).detach().cpu(), rtol=1e-4, atol=1e-5)


def test_onnx_without_decompositions(device: Any) -> None:
    """Without them torch.onnx.export says which op it does not know."""
    program = torch.export.export(seeded(MODULES["MLP"], device), (batch(device),))
    with pytest.raises(torch.onnx.OnnxExporterError) as error:
        torch.onnx.export(program, verbose=False)
    assert "fastops.mlp" in str(error.value)


# ---- TorchScript ----


def scripted(op: torch._ops.OpOverload) -> torch.jit.ScriptModule:
    """A TorchScript module whose arguments are those of the op."""
    arguments = op._schema.arguments
    names = [argument.name.replace("self", "self_") for argument in arguments]
    types = [argument.type.annotation_str for argument in arguments]
    signature = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
    passed = ", ".join(
        f"{name}={name}" if argument.kwarg_only else name for name, argument in zip(names, arguments, strict=True)
    )
    module = torch.jit.script(type("Op", (nn.Module,), {})())  # a class of its own: it gets one forward
    module.define(f"def forward(self, {signature}):\n    return torch.ops.fastops.{op._opname}({passed})\n")
    return module


def value_and_gradients(function: Any, sample: Sample, device: Any) -> list[Tensor | None]:
    """The function called as the sample calls its op, and the gradients of all tensors where it has them."""
    tensors = sample.tensors(device, requires_grad=sample.differentiable)
    arguments = list(sample.arguments(*tensors))
    defaults = [argument.default_value for argument in sample.overload._schema.arguments if not argument.kwarg_only]
    arguments += defaults[len(arguments) :]
    values = as_tuple(sample.outputs(function(*arguments, **sample.keywords(*tensors))))
    if not sample.differentiable:
        return list(values)
    total = torch.stack([(value**2).sum() for value in values]).sum()
    return [*values, *torch.autograd.grad(total, tensors, allow_unused=True)]


@each_rule
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.feature("TorchScript")
def test_script(sample: Sample, device: Any) -> None:
    """In a TorchScript module, saved and loaded, an op has the eager values and gradients."""
    file = io.BytesIO()
    torch.jit.save(scripted(sample.overload), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    results = [value_and_gradients(function, sample, device) for function in (loaded, sample.overload)]
    close(*results)


@each_module
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_freeze(kind: str, device: Any) -> None:
    """A frozen module, whose parameters are constants, gives the module's values."""
    module = seeded(MODULES[kind], device).eval()
    frozen = torch.jit.freeze(torch.jit.script(module))
    assert not list(frozen.parameters())
    close(frozen(batch(device)), module(batch(device)))


# ---- torch.fx ----


def of_one_argument(name: str) -> Any:
    return lambda x: getattr(F, name)(x)


FUNCTIONS = {
    "bias_act": lambda x: F.bias_act(x, x[0], "gelu"),
    "act_mul": lambda x: F.act_mul(x, x + 1, "silu"),
    "gated_act": lambda x: F.gated_act(x, "sigmoid", gate_last=True),
    "linear_act": lambda x: F.linear_act(x, x, x[:, 0], "tanh"),
    "mlp": lambda x: F.mlp(x, [x, x.T], [None, x[0]], "softshrink", params=[0.3]),
    "gated_mlp": lambda x: F.gated_mlp(x, x, x, x.T, activation="relu"),
} | {name: of_one_argument(name) for name in ACTIVATIONS}


def is_op(node: torch.fx.Node, name: str) -> bool:
    return node.op == "call_function" and str(node.target) == f"fastops.{name}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fx_function(name: str, device: Any) -> None:
    """torch.fx.symbolic_trace records a function as its op, which computes with whatever it is given."""
    traced = torch.fx.symbolic_trace(FUNCTIONS[name])
    assert any(is_op(node, name) for node in traced.graph.nodes)
    close(traced(batch(device)), FUNCTIONS[name](batch(device)))


@each_module
def test_fx_module(kind: str, device: Any) -> None:
    """A module, too; its graph module has the same gradients."""
    module = seeded(MODULES[kind], device).eval()
    traced = torch.fx.symbolic_trace(module)
    results = [modules.value_and_gradients(made, list(module.parameters()), batch(device)) for made in (traced, module)]
    close(*results)
