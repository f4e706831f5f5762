"""The libraries of GPU kernels that a torch for such GPUs loads, on stand-ins for the runtime and the driver.

`make gpu-check` runs it with libraries for a few GPUs and activations; it runs wherever fastops was built with
FASTOPS_GPU_LIBRARIES. Each test has a process of its own, in which torch seems to be built for GPUs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fastops
import fatbin
from fastops import _gpu
from processes import forks

RUNTIMES = Path(__file__).parent / "gpu_runtimes"
BUNDLER = shutil.which("clang-offload-bundler-19") or shutil.which("clang-offload-bundler")
COMPILER = shutil.which("cc")
LISTS = {
    file.stem.removeprefix("libfastops_"): file for place in fastops.__path__ for file in Path(place).glob("*.txt")
}

needs_hip = pytest.mark.skipif("hip" not in LISTS or not COMPILER, reason="needs libfastops_hip.so and cc")
needs_cuda = pytest.mark.skipif("cuda" not in LISTS or not COMPILER, reason="needs libfastops_cuda.so and cc")

BEGINNING = """
from types import SimpleNamespace

GPUS = []
torch.cuda.device_count = lambda: len(GPUS)
torch.cuda.get_device_properties = lambda index: GPUS[index]

def amd(name):
    return SimpleNamespace(name="A card", gcnArchName=name)

def nvidia(major, minor):
    return SimpleNamespace(name="A card", major=major, minor=minor)

def use_gpu():
    "What torch does when it begins to use a GPU."
    for call, _ in torch.cuda._queued_calls:
        if call.__module__ == "fastops._gpu":
            call()

def native(op="gelu"):
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"fastops::{op}", "CUDA")

def stand_in(name, kind=ctypes.c_int, count=0):
    "What the runtime wrote down."
    return (kind * count).in_dll(runtime, f"stand_in_{name}") if count else kind.in_dll(runtime, f"stand_in_{name}")

def on_gpu(op, *arguments):
    "Calls an op's kernel for GPUs, which gets the CPU's tensors and hands their addresses on."
    return op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *arguments)
"""

Run = Callable[..., list[str]]


@pytest.fixture(scope="module")
def process() -> Iterator[Callable[[str, dict[str, str]], tuple[int, str]]]:
    """Runs code in a process of its own."""
    with forks("import ctypes, sys, torch") as ask:
        yield ask


@pytest.fixture
def run(process: Callable[[str, dict[str, str]], tuple[int, str]], tmp_path: Path) -> Run:
    """The lines that code prints which finds the stand-ins, made from these sources with these options."""

    def run_code(code: str, **runtimes: list[str]) -> list[str]:
        names = {"hip": "libamdhip64.so.7", "cuda": "libcuda.so.1"}
        beginning = f"{BEGINNING}HIP = {str(tmp_path / names['hip'])!r}\n"
        for source, options in runtimes.items():
            library = tmp_path / names[source]
            flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}", *options]
            command = [str(COMPILER), *flags, str(RUNTIMES / f"{source}.c"), "-o", str(library)]
            subprocess.run(command, check=True)
            if source == "cuda":  # which is found by its name, where it is loaded as well
                beginning += f"ctypes.CDLL({str(library)!r})\n"
        status, printed = process(beginning + code, {})
        assert status == 0, printed
        return printed.splitlines()

    return run_code


HIP = """
runtime = ctypes.CDLL(HIP)
torch.version.hip = "7.0"
GPUS += [amd("gfx90a:sramecc+:xnack-"), amd("gfx1100")]
import fastops
"""


@needs_hip
def test_hip_is_loaded_with_the_first_gpu(run: Run) -> None:
    """Neither the kernels nor their library are there before; afterwards every op has its kernel."""
    code = """
print(native(), fastops._gpu.state["hip"])
use_gpu()
use_gpu()
print(native(), fastops.info().kernels["hip"])
print(*[op for op in fastops.info().native if not native(op)])
"""
    library = LISTS["hip"].with_suffix(".so")
    assert run(HIP + code, hip=[]) == [
        "False not loaded, as torch has used no GPU",
        f"True loaded, {library}",
        "",
    ]


@needs_hip
@pytest.mark.skipif(not BUNDLER, reason="needs clang-offload-bundler")
def test_hip_kernels_are_in_the_code(run: Run, tmp_path: Path) -> None:
    """What is registered by name has its descriptor in the code for each GPU of the list."""
    code = """
use_gpu()
kernels = stand_in("kernel_count").value
names, places = stand_in("names", ctypes.c_char_p, kernels), stand_in("binary_of", ctypes.c_int, kernels)
for i, address in enumerate(stand_in("codes", ctypes.c_void_p, stand_in("code_count").value)):
    header = ctypes.string_at(address, 12)
    assert header[:6] == b"CCOB\\2\\0", header  # compressed, with its size behind
    open(f"{FOLDER}/{i}.bundle", "wb").write(ctypes.string_at(address, int.from_bytes(header[8:], "little")))
for place, name in zip(places, names):
    print(place, name.decode())
"""
    kernels = [line.split() for line in run(f"{HIP}FOLDER = {str(tmp_path)!r}\n{code}", hip=[])]
    assert len(kernels) > 50
    files = list((Path(__file__).parents[1] / "src/backends/hip/kernels").glob("*.hip"))
    assert len({place for place, _ in kernels}) == len(list(tmp_path.glob("*.bundle"))) == len(files)
    for gpu in LISTS["hip"].read_text().split():
        objects = {}
        for bundle in tmp_path.glob("*.bundle"):
            file = bundle.with_suffix(f".{gpu}")
            target = f"--targets=hipv4-amdgcn-amd-amdhsa--{gpu}"
            command = [str(BUNDLER), "--unbundle", "--type=o", target, f"--input={bundle}", f"--output={file}"]
            subprocess.run(command, check=True)
            objects[bundle.stem] = file.read_bytes()
        assert not [name for place, name in kernels if f"\0{name}.kd\0".encode() not in objects[place]], gpu


@needs_hip
def test_hip_launches(run: Run) -> None:
    """An op comes to the runtime through the library; what the runtime says of it is raised."""
    code = """
use_gpu()
x, ops = torch.ones(5, 8), torch.ops.fastops
on_gpu(ops.gelu.default, x)
on_gpu(ops.act_mul.default, x, x, "gelu", [])
on_gpu(ops.mlp_forward.default, x, [torch.ones(3, 8)], [None], "gelu", "gelu", [], [])
print(*[name.decode() for name in stand_in("launched", ctypes.c_char_p, stand_in("launch_count").value)])
stand_in("fails").value = 1
try:
    on_gpu(ops.gelu.default, x)
except RuntimeError as error:
    print(error)
"""
    launched, error = (line for line in run(HIP + code, hip=[]) if "fastops" in line)
    kinds = [re.search(r"\d(transform_row|forward)I", name)[1] for name in launched.split()]
    assert kinds == ["transform_row", "transform_row", "forward"]
    assert error == "fastops: a GPU kernel could not be launched: the stand-in was told to fail"


@needs_hip
@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ("GPUS.append(amd('gfx906:xnack-'))", [], "as GPU 2, A card, is gfx906, and {library} has code for {code}"),
        ("", ["-DWITHOUT_LAUNCH"], "as {runtime} has no function hipLaunchKernel"),
        ("fastops._gpu._BINDINGS = 'no.so'", [], ": OSError: "),
        ("torch.cuda.get_device_properties = None", [], ": TypeError: "),
    ],
    ids=["unknown GPU", "other runtime", "bindings", "torch"],
)
def test_hip_cannot_be_used(change: str, options: list[str], reason: str, run: Run, tmp_path: Path) -> None:
    """It is a line of info(), and the ops stay PyTorch's."""
    state, is_native = run(
        f"{HIP}{change}\nuse_gpu()\nprint(fastops.info().kernels['hip'])\nprint(native())", hip=options
    )
    library = LISTS["hip"].with_suffix(".so")
    gpus = ", ".join(LISTS["hip"].read_text().split())
    expected = reason.format(library=library, code=gpus, runtime=tmp_path / "libamdhip64.so.7")
    assert state.startswith("not loaded") and expected in state
    assert is_native == "False"


@needs_hip
def test_no_hip_runtime(run: Run) -> None:
    """A torch that has loaded none."""
    code = HIP.replace("runtime = ctypes.CDLL(HIP)", "") + "use_gpu()\nprint(fastops.info().kernels['hip'], native())"
    assert run(code) == ["not loaded, as torch has loaded no HIP runtime (libamdhip64.so) False"]


CUDA = """
torch.version.cuda = "13.0"
GPUS += [nvidia(9, 0)]
import fastops
"""


@needs_cuda
def test_cuda_is_loaded_with_the_first_gpu(run: Run) -> None:
    """As HIP's; without a device, an op has the runtime's error."""
    code = """
print(native(), fastops._gpu.state["cuda"])
use_gpu()
print(native(), fastops.info().kernels["cuda"])
print(*[op for op in fastops.info().native if not native(op)])
try:
    on_gpu(torch.ops.fastops.gelu.default, torch.ones(5))
except RuntimeError as error:
    print(error)
"""
    before, after, missing, error = run(CUDA + code, cuda=["-DVERSION=13000"])
    assert before == "False not loaded, as torch has used no GPU"
    assert after == f"True loaded, {LISTS['cuda'].with_suffix('.so')}"
    assert missing == ""
    assert error.startswith("fastops: a GPU kernel could not be launched: ")


@needs_cuda
@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ("", ["-DVERSION=12080"], "NVIDIA's driver is for CUDA 12.8, and the kernels need one for CUDA 13"),
        ("", ["-DVERSION=0"], "there is no NVIDIA driver (libcuda.so.1)"),
        ("", None, "there is no NVIDIA driver (libcuda.so.1)"),
        (
            "GPUS.append(nvidia(7, 5))",
            ["-DVERSION=13000"],
            "GPU 1, A card, is sm_75, and {library} has code for {code}",
        ),
    ],
    ids=["old driver", "no driver", "no libcuda", "unknown GPU"],
)
def test_cuda_cannot_be_used(change: str, options: list[str] | None, reason: str, run: Run) -> None:
    """It is a line of info(), and the ops stay PyTorch's."""
    code = f"{CUDA}{change}\nuse_gpu()\nprint(fastops.info().kernels['cuda'])\nprint(native())"
    state, is_native = run(code, **({} if options is None else {"cuda": options}))
    library = LISTS["cuda"].with_suffix(".so")
    gpus = ", ".join(LISTS["cuda"].read_text().split())
    assert state == f"not loaded, as {reason.format(library=library, code=gpus)}"
    assert is_native == "False"


@needs_cuda
@pytest.mark.skipif(not fatbin.find_zstd(), reason="needs libzstd")
def test_cuda_kernels_are_in_the_code() -> None:
    """What the launching code registers by name has its function in the code for each GPU of the list."""
    binary = LISTS["cuda"].with_suffix(".so").read_bytes()
    codes = list(fatbin.codes(binary))
    kinds = rb"9transform|13transform_row|7forward|8backward|10add_blocks"
    kernel = rb"(?<=\0)_ZN7fastops3hip\w*?(?<!L)(?:" + kinds + rb")I\w+(?=\0)"  # L: the host's
    names = set(re.findall(kernel, binary))
    assert len(names) > 50
    listed = LISTS["cuda"].read_text().split()
    assert sorted({gpu for gpu, _ in codes}) == sorted(listed)
    for gpu in listed:
        found = {name for one, code in codes if one == gpu for name in re.findall(rb"_ZN7fastops3hip\w+", code)}
        assert not names - found, gpu


@pytest.mark.skipif(not LISTS, reason="needs FASTOPS_GPU_LIBRARIES")
def test_torch_for_other_gpus(run: Run) -> None:
    """A torch for CPUs, and one that has no way to say when it begins to use a GPU."""
    for kind, name in (("hip", "AMD"), ("cuda", "NVIDIA")):
        if kind in LISTS:
            (state,) = run(f"torch.version.{kind} = None\nimport fastops; print(fastops.info().kernels[{kind!r}])")
            assert state == f"not loaded, as this torch is not built for {name}'s GPUs"
            without = f"torch.version.{kind} = '13.0'; del torch.cuda._lazy_call\n"
            (state,) = run(f"{without}import fastops; print(fastops.info().kernels[{kind!r}])")
            assert state.startswith("not loaded: fastops: torch") and "has no torch.cuda._lazy_call" in state


@pytest.mark.parametrize(
    ("gpu", "code", "runs"),
    [
        ("gfx1100", "gfx1100", True),
        ("gfx1101", "gfx1100", False),
        ("sm_86", "sm_80", True),
        ("sm_80", "sm_86", False),
        ("sm_90", "sm_89", False),
        ("sm_103", "sm_100", True),
        ("sm_120", "sm_100", False),
        ("sm_121", "compute_120", True),
        ("sm_130", "compute_120", True),
        ("sm_110", "compute_120", False),
        ("sm_90", "sm_90a", True),
        ("sm_103", "sm_100a", False),
        ("sm_103", "sm_100f", True),
        ("sm_100", "sm_103f", False),
        ("sm_110", "sm_100f", False),
        ("sm_90", "compute_90a", True),
        ("sm_100", "compute_90a", False),
        ("sm_103", "compute_100f", True),
        ("sm_120", "compute_100f", False),
    ],
)
def test_which_code_runs(gpu: str, code: str, runs: bool) -> None:
    """As the makers' documents say."""
    assert _gpu._runs(code, gpu) == runs


def test_names_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compilers have them."""
    monkeypatch.setattr(torch.version, "hip", None)
    device = type("Device", (), {"major": 12, "minor": 1, "gcnArchName": "gfx942:sramecc+:xnack-"})
    assert _gpu._name(device) == "sm_121"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert _gpu._name(device) == "gfx942"
