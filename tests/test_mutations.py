"""The mutations that the GPU checks must notice: that each is one of the sources as they are."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools").exists():
    pytest.skip("needs the sources", allow_module_level=True)


def load(path, monkeypatch):
    """The script as a module, with those that lie beside it."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(path.parent)])
    spec = importlib.util.spec_from_file_location(f"mutations_of_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def do_not_apply(mutations, kernels):
    return [mutation for mutation in mutations if mutation.before not in (kernels / mutation.file).read_text()]


def test_gpu(monkeypatch):
    """Those of kernels for HIP and CUDA."""
    module = load(ROOT / "tools/gpu/mutations.py", monkeypatch)
    mutations = [*itertools.chain(*module.WRONG.values()), *(mutation for *_, mutation in module.SLOW)]
    assert len(mutations) > 100
    assert do_not_apply(mutations, ROOT / "src/backends/hip/kernels") == []


def test_metal(monkeypatch):
    """Those of kernels for Apple's GPUs."""
    module = load(ROOT / "tests/metal/mutations.py", monkeypatch)
    mutations = [*module.NOT_METAL, *module.WRONG]
    assert len(mutations) > 20
    assert do_not_apply(mutations, ROOT / "src/backends/metal/kernels") == []
