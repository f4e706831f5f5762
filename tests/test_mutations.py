"""The mutations that the GPU checks must notice: that each is one of the sources as they are."""

import importlib.util
import itertools
from pathlib import Path

from gpu_tools import gpu_tool

ROOT = Path(__file__).parents[1]
of_hip = gpu_tool("mutations")


def do_not_apply(mutations, kernels):
    return [mutation for mutation in mutations if mutation.before not in (kernels / mutation.file).read_text()]


def test_hip():
    """Those of kernels for HIP and CUDA."""
    mutations = [*itertools.chain(*of_hip.WRONG.values()), *(mutation for *_, mutation in of_hip.SLOW)]
    assert len(mutations) > 100
    assert do_not_apply(mutations, ROOT / "src/backends/hip/kernels") == []


def test_metal(monkeypatch):
    """Those of kernels for Apple's GPUs."""
    monkeypatch.syspath_prepend(ROOT / "tests/metal")
    spec = importlib.util.spec_from_file_location("mutations_of_metal", ROOT / "tests/metal/mutations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    mutations = [*module.NOT_METAL, *module.WRONG]
    assert len(mutations) > 20
    assert do_not_apply(mutations, ROOT / "src/backends/metal/kernels") == []
