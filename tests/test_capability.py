"""Every instruction set that this machine can run, and how it is chosen."""

import pytest
import torch

import fastops
from processes import run
from strategies import DEVICE

# From the least to the most: what PyTorch calls each, and what FASTOPS_CPU_CAPABILITY does.
CAPABILITIES = {"DEFAULT": "default", "AVX2": "avx2", "AVX512": "avx512"}

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the instruction sets are the CPU's")


def capability_of(**environment):
    """The instruction set that a process with these environment variables uses."""
    script = "import torch, fastops; torch.ops.fastops.gelu(torch.ones(1)); print(fastops._C.cpu_capability())"
    result = run("-c", script, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def usable():
    """The instruction sets that this CPU runs, least first; only "default" where PyTorch has others than these."""
    here = torch.backends.cpu.get_cpu_capability()
    names = list(CAPABILITIES)
    return [CAPABILITIES[name] for name in names[: names.index(here) + 1]] if here in names else ["default"]


def run_suites(suites, chosen, **environment):
    """Runs files of tests with these environment variables."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    result = run("-m", "pytest", *options, *suites, FASTOPS_TEST_PROFILE="quick", OMP_NUM_THREADS="1", **environment)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert "passed" in result.stdout


@pytest.mark.parametrize("capability", CAPABILITIES.values())
def test_results(capability):
    """The elementwise kernels pass their tests with every instruction set; the one of this process does without us."""
    if capability not in usable():
        pytest.skip(f"this CPU has {usable()}")
    if capability == fastops._C.cpu_capability():
        pytest.skip("the tests themselves have it")
    assert capability_of(FASTOPS_CPU_CAPABILITY=capability) == capability
    suites = [f"test_{name}.py" for name in ("activation", "bias_act", "gated_act")]
    # Without the forms that differ above the kernels; the formulas are the same in all three.
    kernels = "test_activation.py or gelu or softshrink or rows or ties"
    chosen = f"({kernels}) and not (in_place or test_out or autograd or threads)"
    run_suites(suites, chosen, FASTOPS_CPU_CAPABILITY=capability)


@pytest.mark.parametrize("products", ["own", "torch"])
def test_products(products):
    """Networks pass their tests with fastops' matrix products and with PyTorch's, whichever are faster here."""
    if products == "own" and usable() == ["default"]:
        pytest.skip("the baseline has no matrix products")
    run_suites(["test_mlp.py", "test_gated_mlp.py"], "not functions_are_the_ops", FASTOPS_CPU_PRODUCTS=products)


def test_default_is_the_best():
    """Without being asked for another, the library uses what PyTorch does."""
    assert capability_of() == usable()[-1]
    assert capability_of(FASTOPS_CPU_CAPABILITY="") == usable()[-1]


def test_pytorch_choice_is_honoured():
    """ATEN_CPU_CAPABILITY, which limits PyTorch, limits fastops too."""
    assert capability_of(ATEN_CPU_CAPABILITY="default") == "default"
    if "avx512" in usable():
        assert capability_of(ATEN_CPU_CAPABILITY="avx2") == "avx2"


@pytest.mark.parametrize("value", ["avx1024", "AVX2", "avx512 "])
def test_unknown_capability(value):
    """An unknown instruction set is a ValueError that names the variable, the value and the choices."""
    result = run("-c", "import torch, fastops; torch.ops.fastops.gelu(torch.ones(1))", FASTOPS_CPU_CAPABILITY=value)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("ValueError: "), result.stderr
    for part in ("FASTOPS_CPU_CAPABILITY", repr(value), *usable()):
        assert part in message


@pytest.mark.parametrize(("value", "capability", "choices"), [("mkl", "", "own, torch"), ("own", "default", "torch")])
def test_unknown_products(value, capability, choices):
    """Products that are unknown, or not there with an instruction set, are a ValueError with the choices."""
    script = "import torch, fastops; x = torch.ones(1, 1); torch.ops.fastops.linear_act(x, x, None, 'relu')"
    result = run("-c", script, FASTOPS_CPU_PRODUCTS=value, FASTOPS_CPU_CAPABILITY=capability)
    assert result.returncode != 0
    expected = f"ValueError: fastops: FASTOPS_CPU_PRODUCTS is '{value}', but here it can be one of: {choices}"
    if usable() != ["default"]:
        assert expected in result.stderr


def test_unavailable_capability():
    """Asking for an instruction set that PyTorch is kept from using is the same error."""
    environment = {"FASTOPS_CPU_CAPABILITY": "avx512", "ATEN_CPU_CAPABILITY": "default"}
    result = run("-c", "import torch, fastops; torch.ops.fastops.gelu(torch.ones(1))", **environment)
    assert result.returncode != 0
    assert (
        "ValueError: fastops: FASTOPS_CPU_CAPABILITY is 'avx512', but here it can be one of: default" in result.stderr
    )
