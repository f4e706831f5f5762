"""The tables of docs/composability.md: which op is tested with which feature of PyTorch.

A test that is marked with ``@pytest.mark.feature(name)`` stands for the ops that its parameters name; for others,
``ops=[...]`` says which, as names or samples. ``pytest --collect-only --write-features tests`` writes the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reference import ACTIVATIONS
from sample import Sample
from samples import SAMPLES

PATH = Path(__file__).parent.parent / "docs" / "composability.md"

# The columns of each table, and what their tests do.
TABLES = {
    "Derivatives": {
        "gradcheck": "reverse and forward mode, batched and undefined gradients agree with finite differences",
        "gradgradcheck": "so do reverse over reverse and forward over reverse",
        "autograd.functional": "jacobian, jvp, vhp and hvp are PyTorch's",
        "saved tensors": "gradients survive saved tensors that hooks pack and unpack",
        "save_on_cpu": "torch.autograd.graph.save_on_cpu",
        "hooks": "hooks on inputs, results and nodes",
        "anomaly mode": "changes nothing, and names the node of a NaN",
        "compiled autograd": "the backward pass captured and compiled",
    },
    "torch.func": {
        "grad": "grad and vjp",
        "vmap": "over every argument and over some, nested, any dimension",
        "vmap of grad": "per-sample gradients",
        "jvp": "through every argument and each alone, also under vmap and grad",
        "jacobians": "jacrev and jacfwd",
        "hessian": "forward over reverse, forward over forward, reverse over reverse",
        "functionalize": "functionalization",
    },
    "Compilers and formats": {
        "opcheck": "torch.library.opcheck with and without gradients",
        "meta": "meta tensors have the real ones' shapes, dtypes and strides",
        "symbolic sizes": "fake tensors of unknown sizes",
        "compile": "torch.compile(fullgraph=True), also with a dynamic batch",
        "export": "torch.export, saved and loaded",
        "decompositions": "run_decompositions to PyTorch's ops",
        "ONNX": "exported, and run by onnxruntime",
        "AOTInductor": "a package, run from Python and from C++",
        "TorchScript": "script or trace, saved and loaded",
    },
    "Memory, precision, machines": {
        "checkpoint": "torch.utils.checkpoint of both kinds",
        "selective checkpoint": "policies that name the op",
        "autocast": "within eager's error, in bfloat16 and float16",
        "16-bit": "bfloat16 and float16 arguments, within eager's error",
        "DTensor": "sharded tensors",
    },
    "Tools": {
        "profiler": "torch.profiler shows the op with shapes",
        "modes": "__torch_function__ and __torch_dispatch__ modes, logging",
        "subclasses": "tensor subclasses of both kinds",
        "FLOPs": "FlopCounterMode",
        "OpInfo samples": "PyTorch's own sample inputs of the function of that name",
    },
}
COLUMNS = {name for columns in TABLES.values() for name in columns}

# The rows. An activation's stands for its in-place and out= forms as well.
OPS = list(dict.fromkeys(re.sub(r"_?(\.out)?$", "", sample.op) for sample in SAMPLES))

# The ops that a module of fastops.nn calls.
_MODULES = {
    "GatedMLP": ("gated_mlp", "gated_mlp_forward", "gated_mlp_backward"),
    "MLP": ("mlp", "mlp_forward", "mlp_backward"),
    "LinearAct": ("linear_act",),
    **{entry["class_name"]: (name,) for name, entry in ACTIVATIONS.items()},
}


def _ops_of_value(value: Any) -> Iterable[str]:
    if isinstance(value, Sample):
        return [re.sub(r"_?(\.out)?$", "", value.op)]
    if isinstance(value, list):
        return [op for each in value for op in _ops_of_value(each)]
    if isinstance(value, str):
        return _MODULES.get(value.split(" ")[0], [value] if value in OPS else [])
    return []


def _ops_of_test(item: pytest.Item, mark: pytest.Mark) -> set[str]:
    values = mark.kwargs["ops"] if "ops" in mark.kwargs else item.callspec.params.values()
    return {op for value in values for op in _ops_of_value(value)}


def tables(items: Iterable[pytest.Item]) -> str:
    """The tables in Markdown, of the tests that were collected."""
    tested: dict[str, set[str]] = {name: set() for name in COLUMNS}
    for item in items:
        for mark in item.iter_markers("feature"):
            tested[mark.args[0]] |= _ops_of_test(item, mark)
    text = ""
    for title, columns in TABLES.items():
        rows: dict[str, list[str]] = {}  # ops with the same cells share a row
        for op in OPS:
            cells = " | ".join("✓" if op in tested[name] else "·" for name in columns)
            rows.setdefault(cells, []).append(f"`{op}`")
        text += f"### {title}\n\n| ops | {' | '.join(columns)} |\n|---|{':-:|' * len(columns)}\n"
        for cells, ops in rows.items():
            text += f"| {'all' if len(ops) == len(OPS) else ' '.join(ops)} | {cells} |\n"
        text += "\n" + "".join(f"- **{name}**: {meaning}\n" for name, meaning in columns.items()) + "\n"
    return text


def split(document: str) -> tuple[str, str, str]:
    """What stands before the tables, the tables, what follows."""
    begin, end = "<!-- the tables, by tests/features.py -->\n", "<!-- end of the tables -->\n"
    before, rest = document.split(begin)
    middle, after = rest.split(end)
    return before + begin, middle, end + after
