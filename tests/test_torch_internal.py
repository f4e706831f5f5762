"""What fastops takes of PyTorch's internals: where a name is missing, something says so, and nothing is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastops import _torch_internal
from fastops._torch_internal import NAMES
from strategies import DEVICE

CHECK = Path(__file__).parents[1] / "tools/check_torch_internals.py"


@pytest.fixture(scope="module")
def without() -> Iterator[Callable[[str, str], dict[str, Any]]]:
    """Tries what happens without a name; tests/missing_names.py says how."""
    script = Path(__file__).with_name("missing_names.py")
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdin and server.stdout
        assert server.stdout.readline() == "ready\n"

        def ask(place: str, use: str) -> dict[str, Any]:
            print(place, use, sep="\t", file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.mark.skipif(DEVICE != "cpu" or not hasattr(os, "fork"), reason="needs no device, but a fork")
@pytest.mark.parametrize("name", NAMES)
def test_missing_name(name: str, without: Callable[[str, str], dict[str, Any]]) -> None:
    """fastops can be imported and its ops run; what needs the name says so, once, and takes the plain way or none."""
    place, use, plain, _ = NAMES[name]
    answer = without(place, use)
    assert answer["failed"] is None
    missing = f"has no {place.replace(':', '.')}"
    warned = [text for text in answer["warnings"] if missing in text]
    if plain:
        assert answer["error"] is None
        assert len(warned) == 1
        assert plain in warned[0]
    elif warned:  # by what is imported along with a part of torch
        assert answer["error"] is None
        assert len(warned) == 1
        assert f"needed for {use}" in warned[0]
    else:
        assert missing in answer["error"]
        assert f"needed for {use}" in answer["error"]


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name: str) -> None:
    """This torch has all of them."""
    _torch_internal._find(*NAMES[name][:2], plain="", stand_in=None)


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """The check of the sources."""
    if not CHECK.exists():
        pytest.skip("needs the sources")
    spec = importlib.util.spec_from_file_location("check_torch_internals", CHECK)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_internals_are_in_one_place(check: ModuleType) -> None:
    """No other file of fastops uses them."""
    assert not list(check.problems())


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._ops import OpOverload",
        "from torch import _guards",
        "from torch.overrides import _is_torch_function_mode_enabled",
        "import torch\ntorch._C._dispatch_get_all_op_names()",
        "import torch.nn.functional as F\nF._canonical_mask",
        "from torch import nn as modules\nmodules.Module._call_impl",
    ],
)
def test_private_python_is_seen(check: ModuleType, line: str) -> None:
    """Imports and attributes, whatever they are called in the file."""
    assert list(check.in_python(line))


def test_public_python_is_not_seen(check: ModuleType) -> None:
    """Names without an underscore, those of Python itself, and everybody else's."""
    lines = ["import torch", "from . import _C", "import numpy as np", "torch.__version__", "np._core, _C._x"]
    assert not list(check.in_python("\n".join(lines)))


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("#include <ATen/functorch/DynamicLayer.h>", True),
        ("#include <torch/csrc/autograd/function.h>", True),
        ("  set_history(torch::autograd::Edge());", True),
        ("PyObject* type = THPVariableClass;", True),
        ("#include <ATen/ops/empty.h>", False),
        ("#include <c10/util/Exception.h>", False),
        ("// as torch::autograd does", False),
        ("at::linear(x, y);", False),
    ],
)
def test_private_cpp_is_seen(check: ModuleType, line: str, is_private: bool) -> None:
    """Headers and namespaces, but not in comments."""
    assert bool(list(check.in_cpp(line))) is is_private
