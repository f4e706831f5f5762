"""Every instruction set that this machine can run, and how it is chosen."""

import sys
from pathlib import Path

import pytest
import torch

import fastops
from processes import run, run_each
from strategies import DEVICE

# From the least to the most: what PyTorch calls each, and what FASTOPS_CPU_CAPABILITY does.
X86 = {"DEFAULT": "default", "AVX2": "avx2", "AVX512": "avx512"}
ARM = {"SVE128": "sve128", "SVE256": "sve256"}  # over "default", for vectors of one length each
CAPABILITIES = [*X86.values(), *ARM.values()]
WITH_BFLOAT16 = ["avx512_bf16", "amx"]  # those of AVX512 with other products, on CPUs that multiply bfloat16

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="the instruction sets are the CPU's")


ELEMENTWISE = "torch.ops.fastops.gelu(torch.ones(1))"
NETWORKS = [
    "test_mlp.py",
    "test_mlp_jet.py",
    "test_propagation.py",
    "test_value_and_gradient.py",
    "test_gated_mlp.py",
    "test_sequential.py",
    "test_dropout.py",
]
PRODUCTS = "x = torch.ones(1, 1); torch.ops.fastops.linear_act(x, x, None, 'relu')"


def run_with(*cases):
    """Runs scripts in environment variables, which are read when fastops is imported: exit codes, what is printed."""
    return run_each("import torch\n", *((f"import fastops; {script}", environment) for script, environment in cases))


def capabilities_of(*environments):
    """The instruction sets that processes with these environment variables use."""
    script = f"{ELEMENTWISE}; print(fastops._C.cpu_capability())"
    results = run_with(*((script, environment) for environment in environments))
    assert all(code == 0 for code, _ in results), results
    return [printed.strip() for _, printed in results]


def usable():
    """The instruction sets that this CPU runs, least first; only "default" where PyTorch has others than these."""
    here = torch.backends.cpu.get_cpu_capability()
    names = list(X86)
    if here not in names:
        return ["default", *([ARM[here]] if here in ARM else [])]
    pairs = here == "AVX512" and torch.cpu._is_avx512_bf16_supported()
    tiles = pairs and sys.platform == "linux" and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()
    found = [X86[name] for name in names[: names.index(here) + 1]]
    with_bfloat16 = WITH_BFLOAT16[: pairs + tiles]
    if pairs and multiplies_pairs_slowly():
        return [*found[:-1], *with_bfloat16, found[-1]]
    return [*found, *with_bfloat16]


def multiplies_pairs_slowly():
    """Whether float32 is faster than pairs of bfloat16: on Intel's cores with AVX512-FP16 and no tiles."""
    cpu = Path("/proc/cpuinfo")
    known = cpu.read_text() if cpu.exists() else ""
    return "GenuineIntel" in known and "avx512_fp16" in known and "amx_tile" not in known


def has_products():
    """Whether any of them has matrix products."""
    return "avx2" in usable()


def run_suites(suites, chosen, **environment):
    """Runs files of tests with these environment variables."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    result = run("-m", "pytest", *options, *suites, FASTOPS_TEST_PROFILE="brief", OMP_NUM_THREADS="1", **environment)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert "passed" in result.stdout


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_results(capability):
    """The elementwise kernels pass their tests with every instruction set; the one of this process does without us."""
    if capability not in usable():
        pytest.skip(f"this CPU has {usable()}")
    chosen_here = fastops._C.cpu_capability()
    if capability == ("avx512" if chosen_here in WITH_BFLOAT16 else chosen_here):
        pytest.skip("the tests themselves have it")
    assert capabilities_of({"FASTOPS_CPU_CAPABILITY": capability}) == [capability]
    suites = [f"test_{name}.py" for name in ("activation", "bias_act", "gated_act")]
    # Without the forms that differ above the kernels; the formulas are the same in all three.
    kernels = "test_activation.py or gelu or softshrink or rows or ties"
    chosen = f"({kernels}) and not (in_place or test_out or autograd or threads)"
    run_suites(suites, chosen, FASTOPS_CPU_CAPABILITY=capability)


@pytest.mark.parametrize("capability", ["avx512", WITH_BFLOAT16[0]])
def test_products_of_bfloat16(capability):
    """Where the CPU multiplies bfloat16 in a better way, those that are the best elsewhere."""
    if capability not in usable()[:-1]:
        pytest.skip(f"this CPU has {usable()}: the tests themselves have it, if any do")
    chosen = "bfloat16 and not (keeps or left_alone or small_integers)"
    own = {"FASTOPS_CPU_PRODUCTS": "own", "FASTOPS_CPU_CAPABILITY": capability}
    run_suites(NETWORKS, chosen, **own)


@pytest.mark.parametrize("products", ["own", "unpacked", "torch"])
def test_products(products):
    """Networks pass their tests with fastops' matrix products and with PyTorch's, whichever are faster here."""
    if products != "torch" and not has_products():
        pytest.skip("no instruction set of this CPU has matrix products")
    # Without what differs above the products, and the gradients that autograd does not ask for.
    others = (
        "functions_are_the_ops or keeps or left_alone or mlp_backward or every_mask or small_integers or errors "
        "or compile"
    )
    run_suites(NETWORKS, f"not ({others})", FASTOPS_CPU_PRODUCTS=products)


def test_default_is_the_best():
    """Without being asked for another, the library uses what PyTorch does."""
    assert capabilities_of({}, {"FASTOPS_CPU_CAPABILITY": ""}) == [usable()[-1]] * 2


def test_pytorch_choice_is_honoured():
    """ATEN_CPU_CAPABILITY, which limits PyTorch, limits fastops too."""
    names = usable()[:2]
    assert capabilities_of(*({"ATEN_CPU_CAPABILITY": name} for name in names)) == names


def test_unknown_capability():
    """An unknown instruction set is a ValueError that names the variable, the value and the choices."""
    values = ["avx1024", "AVX2", "avx512 "]
    results = run_with(*((ELEMENTWISE, {"FASTOPS_CPU_CAPABILITY": value}) for value in values))
    for value, (code, printed) in zip(values, results, strict=True):
        assert code != 0
        message = printed.strip().splitlines()[-1]
        assert message.startswith("ValueError: "), printed
        for part in ("FASTOPS_CPU_CAPABILITY", repr(value), *usable()):
            assert part in message


def test_unavailable():
    """So are an instruction set that PyTorch is kept from using, and products that an instruction set does not have."""
    cases = [
        (ELEMENTWISE, {"FASTOPS_CPU_CAPABILITY": "avx512", "ATEN_CPU_CAPABILITY": "default"}, "default"),
        (PRODUCTS, {"FASTOPS_CPU_PRODUCTS": "mkl"}, "own, unpacked, torch"),
        (PRODUCTS, {"FASTOPS_CPU_PRODUCTS": "own", "FASTOPS_CPU_CAPABILITY": "default"}, "torch"),
    ]
    results = run_with(*((script, environment) for script, environment, _ in cases))
    for (_, environment, choices), (code, printed) in zip(cases, results, strict=True):
        assert code != 0
        name, value = next(iter(environment.items()))
        if name == "FASTOPS_CPU_CAPABILITY" or has_products():
            assert f"ValueError: fastops: {name} is '{value}', but here it can be one of: {choices}" in printed
