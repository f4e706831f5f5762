"""The occupancy of GPU kernels and its budget (tools/gpu/occupancy.py), without a compiler or a GPU."""

import pytest

from gpu_tools import gpu_tool

check_kernels = gpu_tool("check_kernels")
occupancy = gpu_tool("occupancy")


# Of CUDA's occupancy calculator, and of AMD's tables of waves for each number of registers, with blocks of 256 threads.
@pytest.mark.parametrize(
    ("gpu", "registers", "shared", "blocks"),
    [
        ("sm_90", 32, 0, 8),
        ("sm_90", 40, 0, 6),
        ("sm_90", 64, 0, 4),
        ("sm_90", 65, 0, 3),
        ("sm_90", 128, 0, 2),
        ("sm_90", 255, 0, 1),
        ("sm_90", 32, 48 * 1024, 4),
        ("gfx90a", 64, 0, 8),
        ("gfx90a", 72, 0, 7),
        ("gfx90a", 128, 0, 4),
        ("gfx942", 129, 0, 3),
        ("gfx942", 512, 0, 1),
        ("gfx942", 32, 16 * 1024, 4),
        ("gfx942", 32, 16 * 1024 + 1, 3),
        ("gfx1100", 96, 0, 8),
        ("gfx1100", 97, 0, 6),
        ("gfx1201", 256, 0, 2),
        ("gfx1100", 96, 32 * 1024, 4),
    ],
)
def test_blocks(gpu, registers, shared, blocks):
    """What is published."""
    assert occupancy.blocks(gpu, registers, 256, shared) == blocks


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (
            "void fastops::hip::transform<float, 2, 1, fastops::hip::(anonymous namespace)::Backward<"
            "fastops::activations::ReLU, 3, true, float> >(fastops::hip::(anonymous namespace)::Backward<...",
            "transform<float 2 1 Backward<3 true float>>",
        ),
        (
            "void fastops::hip::(anonymous namespace)::forward<fastops::hip::float16>(fastops::hip::Layers<...",
            "forward<float16>",
        ),
    ],
)
def test_kind(name, kind):
    """The kernels of all activations have one row."""
    assert occupancy.kind(name) == kind


def of_activation(registers, shared=0, name="void fastops::hip::f<float>(int)"):
    """A kernel that has no fault but that."""
    return check_kernels.Kernel("sm_90", "activation", name, registers, shared, spills=0, threads=256)


@pytest.fixture
def budget(tmp_path, monkeypatch):
    """Of one kernel, which needs 48 KiB of shared memory."""
    path = tmp_path / "occupancy.csv"
    path.write_text("source,kernel,shared,gfx90a,sm_90\nactivation,f<float>,1024,8,6\nrows,g<float>,0,5,\n")
    occupancy.budget.cache_clear()
    rows = occupancy.budget(path)
    monkeypatch.setattr(occupancy, "budget", lambda: rows)
    return path


def test_kernels_below_the_budget_are_faults(budget):
    """Fewer blocks, by registers or by shared memory, are a fault; as many, and more, are none."""
    assert of_activation(40).faults() == []
    assert of_activation(32).faults() == []
    assert of_activation(41).faults() == ["5 blocks on a multiprocessor, where the budget has 6"]
    assert of_activation(32, shared=48 * 1024).faults() == ["4 blocks on a multiprocessor, where the budget has 6"]


def test_kernels_without_a_budget_are_faults(budget):
    """And the message says how they get one."""
    (fault,) = of_activation(32, name="void fastops::hip::f<double>(int)").faults()
    assert "--write-budget" in fault


def test_write_budget(tmp_path):
    """The least of all activations takes the place of what was compiled, and shared memory stays."""
    path = tmp_path / "occupancy.csv"
    path.write_text(
        "source,kernel,shared,gfx90a,sm_90\nactivation,f<float>,1024,8,6\nactivation,gone,0,,8\nrows,g<float>,0,5,4\n"
    )
    compiled = [("sm_90", "activation", "f<float>", 5), ("sm_90", "activation", "f<float>", 3)]
    occupancy.write_budget(compiled, path)
    rows = occupancy.budget(path)
    assert rows["activation", "f<float>"] == occupancy.Row(1024, {"gfx90a": 8, "sm_90": 3})
    assert rows["rows", "g<float>"].blocks == {"gfx90a": 5, "sm_90": 4}
    assert ("activation", "gone") not in rows
