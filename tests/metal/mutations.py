"""Breaks the kernels in ways that the checks must notice: what is not Metal, and what goes wrong when it runs.

A mutation that the checks let pass, or that no longer applies, is an error.
"""

from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import kernels
import translate

# The kernels of one activation are enough to show whether a check works.
STATIC = ["FASTOPS_ONLY=FASTOPS_EACH_TYPE(gelu, GELU)"]
DYNAMIC = ["FASTOPS_ONLY=FASTOPS_EACH_TYPE(softshrink, Softshrink)"]
BARRIER = "  threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n"

FOUND = "\n    threadgroup_barrier(metal::mem_flags::mem_threadgroup);  // what norms found can be read\n"


class Mutation(NamedTuple):
    """A text in a file of src/backends/metal/kernels and what it becomes."""

    name: str
    file: str
    before: str
    after: str


def math(name: str, after: str, before: str = "  const float size = metal::fabs(x);\n  const float e") -> Mutation:
    """Statements added to tanh in math.h."""
    return Mutation(name, "math.h", before, after + before)


NOT_METAL = [
    Mutation("a device pointer loses its address space", "access.h", "<device const metal::vec", "<const metal::vec"),
    Mutation("a constant argument as device", "access.h", "place_of(constant Elem", "place_of(device const Elem"),
    Mutation(
        "threadgroup memory through a device pointer",
        "bias_act.metal",
        "= total.v[i].v;",
        "= total.v[i].v; device float* p = &partial[0][0]; *p = 0.0f;",
    ),
    Mutation("a tile through a device pointer", "row_tile.h", "threadgroup float* tiles;", "device float* tiles;"),
    Mutation(
        "a write through a const pointer",
        "activation.metal",
        "device T* result [[buffer(1)]]",
        "device const T* result [[buffer(1)]]",
    ),
    Mutation(
        "a write to constant memory",
        "gated_act.metal",
        "  Quad g = load(gate +",
        "  to.columns = 3;\n  Quad g = load(gate +",
    ),
    Mutation("a parameter without address space", "access.h", "place_of(constant Elem", "place_of(const Elem"),
    Mutation(
        "a kernel's pointer without address space",
        "column_sums.metal",
        "device const float* blocks",
        "const float* blocks",
    ),
    Mutation(
        "a parameter without attribute", "column_sums.metal", "uint column [[thread_position_in_grid]]", "uint column"
    ),
    Mutation("an unknown attribute", "column_sums.metal", "[[thread_position_in_grid]]", "[[thread_index_in_warp]]"),
    Mutation(
        "float to bfloat without conversion", "column_sums.metal", "result[column] = T(sum);", "result[column] = sum;"
    ),
    Mutation(
        "a vector of another type without conversion",
        "access.h",
        "const metal::vec<T, quad> elements =",
        "const metal::vec<float, quad> elements =",
    ),
    Mutation("std::", "math.h", "metal::rint(x *", "std::rint(x *"),
    Mutation("a function of the C library", "math.h", "metal::rint(x *", "rintf(x *"),
    Mutation(
        "a function that Metal lacks", "math.h", "return metal::copysign(e / (e + 2.0f), x);", "return metal::expm1(x);"
    ),
    Mutation("double", "column_sums.metal", "float sum = 0.0f;", "double sum = 0.0;"),
    Mutation("a literal of type double", "column_sums.metal", "float sum = 0.0f;", "float sum = 0.0;"),
    Mutation(
        "recursion",
        "math.h",
        "  const float size = metal::fabs(x);\n  if (!(size > 1.0f)) {",
        "  const float size = metal::fabs(x);\n  if (size > 9.0f) return erf(x * 0.5f);\n  if (!(size > 1.0f)) {",
    ),
    math("new", "  float* memory = new float[4];\n"),
    math("a function pointer", "  float (*pointer)(float) = &exp2; x = pointer(x);\n"),
    math("a lambda", "  const auto f = [](float v) { return v; }; x = f(x);\n"),
    math("a static variable", "  static float cache = 0.0f; x = x + cache;\n"),
    math("goto", "  goto done;\n  done:\n"),
    math("an exception", "  if (x != x) throw 1;\n"),
    math("if constexpr", "  if constexpr (sizeof(float) == 4) x = x + 0.0f;\n"),
    Mutation(
        "a virtual function", "number.h", "struct Number {", "struct Number {\n  virtual float get() { return v; }"
    ),
    Mutation("a global variable", "math.h", "inline float tanh(", "float table[2] = {1.0f, 2.0f};\ninline float tanh("),
]

WRONG = [
    Mutation("no barrier", "bias_act.metal", BARRIER, ""),
    Mutation("a barrier that some threads do not come to", "bias_act.metal", BARRIER, f"  if (count > 0) {BARRIER}"),
    Mutation(
        "a return before the barrier",
        "bias_act.metal",
        "  if (count > 0) {\n    Quad b;",
        "  if (count == 0) return;\n  {\n    Quad b;",
    ),
    Mutation("a store past the end", "access.h", "i < count; ++i) data[i] = T(", "i <= count; ++i) data[i] = T("),
    Mutation(
        "a vector store past the end",
        "access.h",
        "void store(Quad value, device T* data, uint count, bool vectors) {\n  if (vectors && count == uint(quad))",
        "void store(Quad value, device T* data, uint count, bool vectors) {\n  if (vectors && count > 0)",
    ),
    Mutation(
        "a quad past the last column",
        "bias_act.metal",
        "column < to.columns ? metal::min(uint(quad), to.columns - column) : 0;",
        "uint(quad);",
    ),
    Mutation(
        "threadgroup memory that nobody wrote",
        "bias_act.metal",
        "  for (int i = 0; i < quad; ++i) partial[",
        "  for (int i = 1; i < quad; ++i) partial[",
    ),
    Mutation(
        "an element that is not written",
        "access.h",
        "for (uint i = 0; i < count; ++i) data[i]",
        "for (uint i = 1; i < count; ++i) data[i]",
    ),
    Mutation("a dimension left out", "access.h", "d < to.dims; ++d", "d + 1 < to.dims; ++d"),
    Mutation("an index that is not divided", "access.h", "rest - outer * to.sizes[d]", "rest"),
    Mutation("a stride of another dimension", "access.h", "Offset(to.strides[i][1])", "Offset(to.strides[i][0])"),
    Mutation("a strided store past the end", "access.h", "i < place.count; ++i) data[", "i <= place.count; ++i) data["),
    Mutation(
        "a row left out",
        "bias_act.metal",
        "row = first_row + thread_position.y; row < end_row",
        "row = first_row + thread_position.y; row + 1 < end_row",
    ),
    Mutation("another buffer", "column_sums.metal", "to [[buffer(2)]]", "to [[buffer(3)]]"),
    Mutation("a stride of another tensor", "gated_act.metal", "to.strides[1] + column", "to.strides[0] + column"),
    Mutation("no barrier after a tile is loaded", "linear_act.metal", f"  {BARRIER}    for (uint d", "    for (uint d"),
    Mutation("no barrier after a tile is used", "linear_act.metal", f"    }}\n  {BARRIER}", "    }\n"),
    Mutation(
        "no barrier before the sums are read",
        "linear_act.metal",
        f"product_tile);\n  }}\n{BARRIER}",
        "product_tile);\n  }\n",
    ),
    Mutation(
        "a tile from outside of the matrix", "linear_act.metal", "row < size.y && column < size.x", "row < size.y"
    ),
    Mutation(
        "a result outside of the matrix", "linear_act.metal", "row >= to.rows || column >= to.columns", "row >= to.rows"
    ),
    Mutation("no barrier before parts of a row's sum are read", "row_tile.h", f"= value;\n  {BARRIER}", "= value;\n"),
    Mutation("no barrier before a row's sum is read", "row_tile.h", f"  {BARRIER}    float total", "    float total"),
    Mutation("no barrier before what norms found is read", "rows.metal", FOUND, "\n"),
    Mutation("no barrier before the rows' sums are added", "rows.metal", f"  }}\n{BARRIER}  if", "  }\n  if"),
    Mutation("a row that is not there", "row_tile.h", "row < to.rows ? to.columns : 0", "to.columns"),
    Mutation("nine rounds of Philox", "row_tile.h", "round < 10", "round < 9"),
    Mutation("another call of Philox", "rows.metal", "row_group * row_calls + first", "row_group + first"),
    Mutation("a column of another row's tile", "row_tile.h", "thread_position.y * group_size.x * to.slots +", ""),
    Mutation("a sum in another one's place", "rows.metal", "wants_weight_grad + step.wants_bias", "wants_bias"),
    Mutation("a norm's gradient without its mean", "rows.metal", "- mean - kept_at", "- 0.0f * mean - kept_at"),
    Mutation("a norm's gradient of another mean", "rows.metal", "(value - row.first_mean())", "(value)"),
    Mutation("the sums of one block only", "column_sums.metal", "row < to.rows", "row < 1"),
]


def mutated(mutation: Mutation, directory: Path) -> Path:
    """A copy of the sources with the mutation; the directory of includes."""
    include = directory / "src"
    for folder in ("activations", "backends/metal/kernels"):
        shutil.copytree(translate.ROOT / "src" / folder, include / folder)
    path = include / "backends/metal/kernels" / mutation.file
    text = path.read_text()
    if mutation.before not in text:
        raise LookupError(f"{mutation.name}: {mutation.file} has no {mutation.before!r}")
    path.write_text(text.replace(mutation.before, mutation.after, 1))
    return include


def sources(include: Path) -> list[Path]:
    return sorted((include / "backends/metal/kernels").glob("*.metal"))


def is_refused(mutation: Mutation) -> bool:
    """Whether the check of what is Metal notices it."""
    with tempfile.TemporaryDirectory() as directory:
        include = mutated(mutation, Path(directory))
        try:
            for source in sources(include):
                kernels.check(source, STATIC, include)
        except translate.NotMetalError:
            return True
        return False


def fails(mutation: Mutation | None) -> bool:
    """Whether the short test of all kernels notices it."""
    with tempfile.TemporaryDirectory() as directory:
        include = mutated(mutation, Path(directory)) if mutation else translate.ROOT / "src"
        library = Path(directory, "kernels.so")
        kernels.build(library, sources(include), defines=DYNAMIC, include=include)
        for schedule in ("0", "1"):
            environment = {**os.environ, "FASTOPS_METAL_KERNELS": str(library), "FASTOPS_METAL_SCHEDULE": schedule}
            command = [sys.executable, str(kernels.HERE / "short_run.py")]
            result = subprocess.run(command, env=environment, capture_output=True, text=True)
            if mutation is None and result.returncode:
                sys.exit(f"the kernels as they are fail:\n{result.stdout}{result.stderr}")
            if result.returncode:
                return True
        return False


def main() -> None:
    fails(None)
    missed = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for mutations, noticed in ((NOT_METAL, is_refused), (WRONG, fails)):
            for mutation, found in zip(mutations, pool.map(noticed, mutations), strict=True):
                print("noticed" if found else "MISSED ", mutation.name, flush=True)
                if not found:
                    missed.append(mutation.name)
    if missed:
        sys.exit(f"{len(missed)} mutations passed the checks: {', '.join(missed)}")


if __name__ == "__main__":
    main()
