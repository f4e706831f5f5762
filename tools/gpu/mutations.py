"""Breaks the GPU kernels in ways that the GPU check must notice: in their machine code, or when the tests run them.

A mutation that the checks let pass, or that no longer applies, is an error. Needs what check.sh leaves.
An argument is a regular expression that chooses mutations.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import check_kernels
from check_kernels import ROOT

OUT = ROOT / "build/gpu-check"
GPUS = ["gfx90a", "gfx1100", "sm_90"]


class Mutation(NamedTuple):
    """A text in a file of src/backends/hip/kernels and what it becomes."""

    name: str
    file: str
    before: str
    after: str


class Group(NamedTuple):
    """What shows mutations of one file of kernels: these tests, in either order of the threads."""

    source: str
    tests: str  # a file, and pytest's -k
    gpu: str = "none"  # whose matrix cores there are
    blocks: str = "all"  # or "ends": which blocks the emulator runs


UNBROKEN = Mutation("the kernels as they are", "transform.h", "", "")  # which must pass
BARRIER = "__syncthreads();\n"
SHARED = "sync_shared();\n"
COLUMN = "if (column < columns) {\n    P"
BRING = "bring_weight(layer);\n"
PACKETS = "ask_packets(layers.of["
ADDED_TILE = "S* const added ="
SUM_ROW = "sum_row(int lane, int e) { return 4 * (lane / 16) + e;"
INDEX = "row * row_stride + column * column_stride"
PACKED = "row * row_stride + column"
TAIL = "::erfcf(x.v * -0.70710678118654752440f)"
OTHERS = "if (width == 1 || access == Access::packet) return;"
LANES = "sync_lanes<Multiplier::lanes>();\n"
CORES = "test_gpu_products: rounded_once and float16"
SMALL = "test_mlp: float16 and (small_integers or small_numbers)"
END = "begin + block_rows < rows ? begin + block_rows : rows"

WRONG = {
    Group("activation.hip", "test_activation: test_forward or in_place or every_lane"): [
        Mutation("a row past the last", "transform.h", "if (row >= rows) return;", "if (row > rows) return;"),
        Mutation("an element past the last", "transform.h", "column < columns) {", "column <= columns) {"),
        Mutation("an element past the last of a row", "transform.h", "place < threads)", "place <= threads)"),
        Mutation(
            "a row's elements left out", "transform.h", "(threads, block_threads))", "(threads - 1, block_threads))"
        ),
        Mutation("rows left out", "transform.h", "divide_up(call.rows, block.y)", "call.rows / block.y"),
        Mutation("elements left out", "transform.h", "grid(divide_up(threads, block.x)", "grid(threads / block.x"),
        Mutation("packets that are not aligned", "transform.h", "% 16 == 0 &&", "% sizeof(Storage) == 0 &&"),
        Mutation("rows that are not aligned", "transform.h", "(rows == 1 || row", "(true || row"),
        Mutation("packets of elements that lie apart", "transform.h", "column_stride == 1 &&", ""),
        Mutation("the stride of the columns left out", "transform.h", "column * column_stride]", "column]"),
        Mutation("16 bits rounded down", "number.h", "bits + 0x7fffu + ((bits >> 16) & 1u)", "bits"),
    ],
    Group("activation.hip", "test_activation: sixteen_bit or special_values"): [
        Mutation("a NaN rounded to infinity", "number.h", "nan ? (bits >> 16) | 0x40u : ", "!nan ? 0 : "),
        Mutation("a polynomial of a lower degree", "number.h", ", 1.414603647e-02f", ""),
        Mutation("a denominator of a lower degree", "number.h", ", 1.309861243e-01f", ""),
    ],
    Group("activation.hip", "test_activation: test_tails"): [
        Mutation(
            "GELU's tail cancels in 16 bits", "number.h", "1.0f - tail : tail,", "1.0f - tail : 1.0f - (1.0f - tail),"
        ),
        Mutation("GELU's tail cancels", "number.h", TAIL, "(1.0f + ::erff(x.v * 0.70710678118654752440f))"),
    ],
    Group("activation.hip", "test_far_apart: test_activation"): [
        Mutation("indices of 32 bits", "transform.h", f"data[{INDEX}]", f"data[int({INDEX})]"),
        Mutation("indices of 32 bits, unsigned", "transform.h", f"data[{INDEX}]", f"data[unsigned({INDEX})]"),
        Mutation("indices of packets of 32 bits", "transform.h", f"data[{PACKED}]", f"data[int({PACKED})]"),
        Mutation("strides of rows of 32 bits", "transform.h", "int64_t row_stride;", "int row_stride;"),
        Mutation("strides of columns of 32 bits", "transform.h", "int64_t column_stride;", "int column_stride;"),
    ],
    Group("activation.hip", "test_far_apart: test_ends", blocks="ends"): [
        Mutation("rows of 32 bits", "transform.h", "const int64_t row = (", "const int row = ("),
        Mutation("columns of 32 bits", "transform.h", "row, int64_t{place} * width", "row, int(place * width)"),
        Mutation("columns of a row of 32 bits", "transform.h", "0, int64_t{place} * width", "0, int(place * width)"),
        Mutation(
            "more threads than a grid has", "device.h", "(int64_t{1} << 32) - 2 * block_threads", "int64_t{1} << 40"
        ),
        Mutation("a part twice", "transform.h", "operand.move(column)", "operand.move(0)"),
    ],
    Group("activation_backward.hip", "test_activation: test_backward and not from_output"): [
        Mutation("another order", "activation_backward.hip", "A, Storage, 3, from", "A, Storage, 2, from"),
        Mutation("of the output", "activation_backward.hip", "if (from_output)", "if (!from_output)"),
    ],
    Group("bias_act.hip", "test_bias_act: test_forward or test_backward and not from_output or 20000-3"): [
        Mutation("no barrier", "block_sums.h", BARRIER, ""),
        Mutation("a barrier for some", "block_sums.h", BARRIER, f"if (threadIdx.y < half) {BARRIER}"),
        Mutation("a return before a barrier", "bias_act.hip", COLUMN, f"if (column >= columns) return;\n{COLUMN}"),
        Mutation("a race", "block_sums.h", "if (threadIdx.y < half)", "if (threadIdx.y <= half)"),
        Mutation("too little shared memory", "bias_act.hip", "block_threads * width *", "block_threads *"),
        Mutation("shared memory that nobody wrote", "block_sums.h", "mine[k * blockDim.x] = sums[k]", "sums[k]"),
        Mutation("rows of the next block", "bias_act.hip", END, "rows"),
        Mutation("a row past the last", "bias_act.hip", END, "begin + block_rows"),
        Mutation("the same row again", "bias_act.hip", "load(row + blockDim.y);", "load(row);"),
        Mutation("a row asked for past the last", "bias_act.hip", "if (row >= end) return;", ""),
        Mutation("the last block left out", "block_sums.h", "(; block < blocks;", "(; block + 1 < blocks;"),
        Mutation("blocks past the last", "block_sums.h", "block + (at_once - 1) * step < blocks", "block < blocks"),
        Mutation("a column past the last", "bias_act.hip", "if (first_column + c >= columns) return;", ""),
        Mutation("the bias of another column", "bias_act.hip", "packet(added, 0, column)", "packet(added, 0, 0)"),
    ],
    Group("gated_act.hip", "test_gated_act: not is_glu"): [
        Mutation("another factor", "gated_act.hip", "y[1] = value * grad", "y[1] = gate * grad"),
        Mutation("ties away from even", "number.h", "+ ((bits >> 16) & 1u)", "+ 1u"),
        Mutation("a result that is not wanted", "transform.h", "if (outputs == 1 || output.of[i].data) ", ""),
    ],
    Group("gated_act.hip", "test_operands: act_mul"): [
        Mutation("the next element for a step", "transform.h", "= from[k * this->column_stride]", "= from[k]"),
        Mutation("the elements of a piece in disorder", "transform.h", "set(k, element[k])", "set(k, *element)"),
        Mutation("one number for each packet", "transform.h", "m.column_stride == 0 ?", "true ?"),
        Mutation("no operand but in packets", "transform.h", OTHERS, "return;"),
    ],
    Group("activation.hip", "test_operands: forward"): [
        Mutation("a step of one in results", "transform.h", "to[k * this->column_stride] =", "to[k] ="),
        Mutation("results in packets", "transform.h", "if (width == 1 || access == Access::packet) {", "if (true) {"),
    ],
    Group("product.hip", "test_gpu_products: integers"): [
        Mutation("no meeting before products", "product.hip", f"{LANES}      if (begin", "if (begin"),
        Mutation(
            "no meeting after products", "product.hip", f"right_slice);\n      {LANES}    }}", "right_slice);\n    }"
        ),
        Mutation("no barrier before sums", "product.hip", f"{BARRIER}    sums.for_each", "sums.for_each"),
        Mutation("no barrier after sums", "product.hip", f"{BARRIER}    // A thread's", "// A thread's"),
        Mutation("a number past the last of a line", "product_sums.h", "at_begin < (", "at_begin <= ("),
        Mutation("a line past the last", "product_sums.h", "line_after(s) < rest", "line_after(s) <= rest"),
        Mutation("a row stored past the last", "product.hip", "first_row + row >= left.size || ", ""),
        Mutation("a wave left out", "product.hip", "waves; ++p) sum += at", "waves - 1; ++p) sum += at"),
        Mutation("another slice", "product.hip", "ask(begin + step + ahead)", "ask(begin + ahead)"),
        Mutation(
            "lines that are no packets", "product.hip", "factor.stride % packet == 0 && length % packet == 0", "true"
        ),
        Mutation("too little shared memory", "product.hip", "(Left::floats + Right::floats), l", "Left::floats, l"),
        Mutation("the sums of other rows", "product_sums.h", "if (lane() % 4 != 0) return;", "if (lane() > 7) return;"),
        Mutation("the bias of another column", "product.hip", "bias[column * bias_stride]", "bias[0]"),
    ],
    Group("product.hip", CORES, gpu="sm_90"): [
        Mutation(
            "memory for slices of half the depth", "product.hip", "bytes(MatrixProducts<AnyCores>())", "size_t{0}"
        ),
        Mutation("half of a slice", "product_sums.h", "k += matrix_size", "k += 2 * matrix_size"),
        Mutation("sums of every product", "product_sums.h", "of_left[i].add(l, ones)", "of_left[i].add(l, l)"),
        Mutation(
            "lines of another matrix", "matrix.h", "(transposed ? along : across)", "(transposed ? across : along)"
        ),
        Mutation("lines along the depth", "product_sums.h", "at_once<!Layout::", "at_once<Layout::"),
    ],
    Group("product.hip", CORES, gpu="gfx942"): [
        Mutation(
            "half of a wave",
            "product_sums.h",
            "static constexpr int lanes = Cores::wave;",
            "static constexpr int lanes = 32;",
        ),
        Mutation(
            "tiles at the place of others",
            "product_sums.h",
            "? i * matrix_size * stride + k :",
            "? i * matrix_size * stride :",
        ),
    ],
    Group("narrow_rows.hip", "test_sequential: test_norms_of_few_rows or test_rows_anywhere"): [
        Mutation("a row past the last", "narrow_rows.hip", "row_ < steps.rows ?", "row_ <= steps.rows ?"),
        Mutation("a column past the last", "narrow_rows.hip", "column(place) < end_", "column(place) <= end_"),
        Mutation("packets that are not aligned", "narrow_rows.hip", "% sizeof(Bytes) == 0", "% sizeof(T) == 0"),
        Mutation("no operand but in packets", "narrow_rows.hip", "if (!from || in_packets(from)) return;", "return;"),
        Mutation(
            "a mean of what is beyond", "narrow_rows.hip", "row.has(p) ? h[p].of[k] - mean : 0.0f", "h[p].of[k] - mean"
        ),
        Mutation("too little shared memory", "narrow_rows.hip", "threads * places * tiles", "threads * tiles"),
        Mutation("the sums of another row", "narrow_rows.hip", "sums + row.number() *", "sums + (row.number() ^ 1) *"),
    ],
    Group("rows.hip", "test_sequential: test_norms_of_few_rows"): [
        Mutation("sums of blocks of rows", "rows.hip", "narrow ? call.rows : ", ""),
    ],
    Group("rows.hip", "test_sequential: test_blocks"): [
        Mutation("no barrier before a row's sums", "row_tile.h", f"= S(0);\n    }}\n    {BARRIER}", "= S(0);\n    }\n"),
        Mutation("no barrier before a block's sums", "rows.hip", f"{BARRIER}  if (threadIdx.y", "if (threadIdx.y"),
        Mutation("a row past the last", "rows.hip", "threadIdx.y < rows.rows);", "threadIdx.y <= rows.rows);"),
        Mutation("a column stored past the last", "row_tile.h", "columns_) to[", "columns_ + 1) to["),
        Mutation("fours stored past the last", "row_tile.h", "columns_) *reinter", "columns_ + 1) *reinter"),
        Mutation("a column added past the last", "row_tile.h", "i < rest", "i <= rest"),
        Mutation("columns that are no fours", "row_tile.h", "all_columns_ % 4 == 0 &&", ""),
        Mutation(
            "too little shared memory", "rows.hip", "call.count + 1 + sums_of(call)", "call.count + sums_of(call)"
        ),
        Mutation("rows of the block left out", "rows.hip", "unsigned r = 1;", "unsigned r = 2;"),
        Mutation("the last block left out", "block_sums.h", "(; block < blocks;", "(; block + 1 < blocks;"),
        Mutation("the biased sum of squares", "rows.hip", "(x - mean) * (x - mean)", "x * x"),
        Mutation("another call of Philox", "row_tile.h", "call / calls * group + call % calls", "call % calls"),
        Mutation("no meeting before a dropout", "row_tile.h", "sync_lanes();\n    for_each", "for_each"),
        Mutation("no meeting after a dropout", "row_tile.h", "});\n    sync_lanes();", "});"),
        Mutation("the row of another block", "rows.hip", "gridDim.x} * blockDim.y;", "gridDim.x + 1} * blockDim.y;"),
        Mutation("values of the last step left out", "rows.hip", "rows_.count || value.data;", "rows_.count;"),
    ],
    Group("rows.hip", "test_sequential: test_rows_anywhere"): [
        Mutation("fours that are not aligned", "row_tile.h", "% 16 == 0;", "% 4 == 0;"),
    ],
    Group("small_mlp.hip", "test_mlp: mlp_forward or mlp_backward or test_many_rows and not data and gelu"): [
        Mutation(
            "no barrier after loading", "tile.h", f"bring(part, width);\n        {SHARED}", "bring(part, width);\n"
        ),
        Mutation("no barrier after products", "tile.h", f"      }}\n    }}\n    {SHARED}", "      }\n    }\n"),
        Mutation("no barrier after the values", "tile.h", f": sum; }});\n    {SHARED}", ": sum; });\n"),
        Mutation("no barrier before the first panel", "tile.h", f"{SHARED[:-1]}  // what", "// what"),
        Mutation("the bias of the same layer", "tile.h", "bias.ask(layers.of[then])", "bias.ask(layer)"),
        Mutation("no barrier before sums", "small_mlp.hip", f"{SHARED}        tile.add_par", "tile.add_par"),
        Mutation("the same panel again", "tile.h", "is_last ? p : index + panels", "is_last ? p : index"),
        Mutation("the next layer's second panel first", "tile.h", "is_last ? p : index", "is_last ? p + 1 : index"),
        Mutation("the first panel of the same layer", "tile.h", "is_last ? then : i]", "i]"),
        Mutation("a row past the last of a weight", "tile.h", "least(row, layer.out_features - 1)", "row"),
        Mutation("a row past the last", "small_mlp.hip", "rows = rest < tile_rows<Storage> ? ", "rows = false ? "),
        Mutation("the last block left out", "block_sums.h", "(; block < blocks;", "(; block + 1 < blocks;"),
        Mutation("the next element", "tile.h", "f(row, column, sum[i][j][e])", "f(row, column + 1, sum[i][j][e])"),
        Mutation("an element read past the last", "tile.h", "from(r < rows ? r : rows - 1,", "from(r,"),
        Mutation(
            "an element brought past the last", "tile.h", "if (r < rows && c < columns) to", "if (c < columns) to"
        ),
        Mutation("elements outside of the tile", "tile.h", "row < height && column < width", "row < height"),
    ],
    Group("small_mlp.hip", "test_mlp: test_many_rows_of_data"): [
        Mutation("no barrier after sums", "small_mlp.hip", f"      {SHARED}    }}\n  }});", "    }\n  });"),
    ],
    Group("small_mlp.hip", "test_far_apart: test_mlp"): [
        Mutation("elements of 32 bits", "transform.h", f"data[{INDEX}]", f"data[int({INDEX})]"),
    ],
    Group("small_mlp.hip", SMALL, gpu="gfx90a"): [
        Mutation("no barrier before the weight", "matrix_tiles.h", f"{SHARED}    bring_", "    bring_"),
        Mutation("no barrier after the weight", "matrix_tiles.h", f"{BRING}    {SHARED}", BRING),
        Mutation("no barrier before the values", "matrix_tiles.h", f"{SHARED}    {ADDED_TILE}", ADDED_TILE),
        Mutation("no barrier after the bias", "matrix_tiles.h", f"added);\n      {SHARED}", "added);\n"),
        Mutation("the bias of the same layer", "matrix_tiles.h", "bias.ask(layers.of[then])", "bias.ask(layer)"),
        Mutation("no barrier after the values", "matrix_tiles.h", f"      }}\n    }}\n    {SHARED}  }}", "}}}"),
        Mutation("the weight of the same layer again", "matrix_tiles.h", f"{PACKETS}then]", f"{PACKETS}i]"),
        Mutation("packets of every weight", "matrix_tiles.h", "wanted && layer.weight_in_packets", "wanted"),
        Mutation("nothing beyond the edges", "matrix_tiles.h", "padded(rows), padded(width), [", "rows, width, ["),
        Mutation("a part of a wave", "matrix_tiles.h", "column >= width) break", "column > width - lane) break"),
        Mutation("rows of other lanes", "matrix.h", SUM_ROW, f"{SUM_ROW[:-1]} ^ 1;"),
        Mutation(
            "subnormal numbers", "matrix.h", "multiply_add_float32<Storage>(sum, a", "mfma_16x16x16<Storage>(sum, a"
        ),
    ],
    Group("small_mlp.hip", SMALL, gpu="gfx1100"): [
        Mutation(
            "operands in half of the lanes",
            "matrix.h",
            "row(int lane, int) { return lane % 16; }\n  __device__ static constexpr int depth(int, ",
            "row(int lane, int) { return lane / 2; }\n  __device__ static constexpr int depth(int, ",
        ),
    ],
}

ARRAY = "N z[64]; for (int i = 0; i < 64; ++i) z[i] = x[0] * N(i); x[0] = z[column & 63]; formula(x, y);"
EITHER = "S sums[width] = {}; sums[0] = *(rows < 9 ? static_cast<S*>(shared_memory()) : block_sums);"
EACH = "for (int k = 0; k < width; ++k)"
PACKET = "input.of[i].load_packet(in[i], row, column);"
ELEMENTS = f"{EACH} in[i].set(k, input.of[i].at(row, column + k));"
RESULT = "output.of[i].store(out[i], row, column);"
RESULTS = f"{EACH} output.of[i].at(row, column + k) = out[i].get(k);"
ADDED = "bias.load_packet(added, 0, column);"
ADDED_ELEMENTS = f"{EACH} added.set(k, bias.at(0, column + k));"
TRANSFORM = "__device__ void transform_piece"
HELD = "__shared__ Compute<Storage> held[12288 / sizeof(Storage)]; "
HELD += "held[threadIdx.x] = x[0].v; __syncthreads(); x[0].v = held[0]; formula(x, y);"
REGISTERS = "block_threads, sizeof(Storage) == 8 ? 2 : 3)"
SUMS = "block_sums[blockIdx.y * columns + first_column + c]"
DX = "reinterpret_cast<Result&>(dx.at(row, column))", "dx.template packet<width>(row, column)"

NEXT = "is_last ? p : index + panels);"
WAIT = f"{NEXT} next[p].bring(part, width);"
EITHER_WAY = f"if (layers.of[then].weight_in_packets) {PACKETS}"

# Each with the file of kernels, the GPUs and the fault that it is to be noticed by.
SLOW = [
    (
        "bias_act.hip",
        ["gfx90a"],
        "compare-and-swap loop",
        Mutation("atomic sums", "bias_act.hip", f"{SUMS} = sum;", f"atomicAdd(&{SUMS}, sum);"),
    ),
    (
        "bias_act.hip",
        GPUS,
        "generic memory access",
        Mutation("an address in either memory", "bias_act.hip", "S sums[width] = {};", EITHER),
    ),
    (
        "activation.hip",
        GPUS,
        "spills registers or uses scratch memory",
        Mutation("an array in memory", "transform.h", "formula(x, y);", ARRAY),
    ),
    (
        "activation.hip",
        GPUS,
        "call",
        Mutation("a function call", "transform.h", TRANSFORM, f"__attribute__((noinline)) {TRANSFORM}"),
    ),
    (
        "activation.hip",
        GPUS,
        "0 stores of 16 bytes",
        Mutation("no packets", "transform.h", "if (place < pieces)", "if (place < 0)"),
    ),
    (
        "gated_act.hip",
        GPUS,
        "2 loads of 16 bytes",
        Mutation("the last input element by element", "transform.h", PACKET, f"if (i < 2) {PACKET} else {ELEMENTS}"),
    ),
    (
        "gated_act.hip",
        GPUS,
        "2 stores of 16 bytes",
        Mutation(
            "the last output element by element", "transform.h", RESULT, f"{{ if (i < 2) {RESULT} else {RESULTS} }}"
        ),
    ),
    (
        "bias_act.hip",
        GPUS,
        "4 loads of 16 bytes",  # of two operands' first and next rows
        Mutation("the bias element by element", "bias_act.hip", ADDED, ADDED_ELEMENTS),
    ),
    (
        "bias_act.hip",
        ["sm_90"],  # AMD's compiler keeps the packet
        "0 stores of 16 bytes",
        Mutation("the input's gradient by packet()", "bias_act.hip", *DX),
    ),
    (
        "activation.hip",
        GPUS,
        "blocks on a multiprocessor",
        Mutation(
            "blocks of 1024 threads", "transform.h", "__launch_bounds__(block_threads,", "__launch_bounds__(1024,"
        ),
    ),
    (
        "activation.hip",
        GPUS,
        "blocks on a multiprocessor",
        Mutation("shared memory for nothing", "transform.h", "formula(x, y);", HELD),
    ),
    (
        "bias_act.hip",
        ["gfx90a", "gfx1100"],
        "blocks on a multiprocessor",
        Mutation("blocks of 1024 threads", "bias_act.hip", REGISTERS, "1024)"),
    ),
    (
        "bias_act.hip",
        ["sm_90"],  # AMD's GPUs have room for as many blocks
        "blocks on a multiprocessor",
        Mutation("registers for two blocks", "bias_act.hip", REGISTERS, "block_threads, 2)"),
    ),
    (
        "small_mlp.hip",
        ["gfx90a", "gfx1100"],  # in the order of PTX, the first panels are under way
        "loads under way",
        Mutation("the next panel is waited for", "tile.h", NEXT, WAIT),
    ),
    (
        "small_mlp.hip",
        ["gfx90a", "gfx1100"],
        "loads under way",
        Mutation("ways meet before the products", "matrix_tiles.h", PACKETS, EITHER_WAY),
    ),
    (
        "activation.hip",
        ["sm_90"],  # AMD's GPUs read a packet at once from any address
        "0 loads of 16 bytes",
        Mutation("packets that are not aligned", "number.h", "alignas(sizeof(Storage) * count)", ""),
    ),
]


def mutated(mutation: Mutation, directory: Path) -> Path:
    """A copy of the sources with the mutation."""
    shutil.copytree(ROOT / "src", directory / "src")
    path = directory / "src/backends/hip/kernels" / mutation.file
    text = path.read_text()
    if mutation.before not in text:
        raise LookupError(f"{mutation.name}: {mutation.file} has no {mutation.before!r}")
    path.write_text(text.replace(mutation.before, mutation.after, 1))
    return directory / "src"


def sanitized(source: str, src: Path, directory: Path) -> Path:
    """A library of a file's kernels, compiled as the build does it, and the build's emulator and other kernels."""
    (database,) = (ROOT / "build").glob(f"cp{sys.version_info.major}{sys.version_info.minor}-*/compile_commands.json")
    commands = [entry["command"] for entry in json.loads(database.read_text())]

    def words(name: str) -> list[str]:
        (command,) = (text for text in commands if f"gpu_kernels_sanitized.dir/{name}.o " in text)
        return shlex.split(command.replace(str(ROOT / "src"), str(src)))

    def output(words: list[str]) -> int:
        return words.index("-o") + 1

    kernels = words(f"__/kernels/{source}")
    kernels[output(kernels)] = str(directory / "kernels.o")
    check_kernels.run([*kernels, "-O0", "-w"])
    others = [f"__/kernels/{path.name}" for path in check_kernels.SOURCES if path.name != source]
    built = [words(name) for name in ("emulator.cpp", *others)]
    objects = [kernels[output(kernels)], *(str(database.parent / command[output(command)]) for command in built)]
    library = directory / "libmutated.so"
    check_kernels.run(["g++", "-shared", "-fsanitize=address,undefined", *objects, "-o", str(library)])
    return library


def preloaded(library: Path) -> str:
    """LD_PRELOAD with the library before those of the installation."""
    runtime = ("libasan.so", "libstdc++.so.6")
    return " ".join(
        [check_kernels.run(["g++", f"-print-file-name={name}"]).strip() for name in runtime] + [str(library)]
    )


def passes(library: Path, group: Group, order: str) -> bool:
    """Whether the tests pass with the kernels of the library."""
    environment = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=0",
        "CI": "true",  # the same examples on every run
        "FASTOPS_CPU_CAPABILITY": "default",
        "FASTOPS_EMULATOR_BLOCKS": group.blocks,
        "FASTOPS_EMULATOR_GPU": group.gpu,
        "FASTOPS_EMULATOR_ORDER": order,
        "FASTOPS_TEST_PROFILE": "quick",
        "LD_PRELOAD": preloaded(library),
        "PYTEST_PLUGINS": "few_activations",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    file, chosen = group.tests.split(": ")
    command = f"{OUT / 'venv/bin/python'} -m pytest -x -q -p no:cacheprovider tests/{file}.py -k".split()
    done = subprocess.run([*command, chosen], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode > 1:
        sys.exit(f"the tests did not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def is_wrong(group: Group, mutation: Mutation) -> bool:
    """Whether the tests notice it, with the threads in one order or in the other."""
    with tempfile.TemporaryDirectory() as directory:
        library = sanitized(group.source, mutated(mutation, Path(directory)), Path(directory))
        return not all(passes(library, group, order) for order in ("forward", "reverse"))


def is_slow(source: str, gpu: str, fault: str, mutation: Mutation) -> bool:
    """Whether the machine code shows the fault."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        path = mutated(mutation, out) / "backends/hip/kernels" / source
        is_amd = gpu.startswith("gfx")
        few = check_kernels.FEW
        compiler = check_kernels.Amd(out, [gpu], few) if is_amd else check_kernels.Nvidia(out, few)
        return any(fault in found for kernel in compiler.compile(path, gpu) for found in kernel.faults())


def main() -> None:
    """See above."""
    chosen = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
    skipped = [gpu for gpu in GPUS if check_kernels.lacks_compiler(gpu)]
    wrong = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            f"{group.source}, {group.gpu}, {group.tests}: {mutation.name}": (is_wrong, group, mutation)
            for group, mutations in WRONG.items()
            for mutation in [UNBROKEN, *mutations]
        } | {
            f"{source}, {mutation.name} on {gpu}": (is_slow, source, gpu, fault, mutation)
            for source, gpus, fault, mutation in SLOW
            for gpu in gpus
            if gpu not in skipped
        }
        found = {what: pool.submit(*job) for what, job in jobs.items() if chosen.search(what)}
        for what, result in found.items():
            is_right = result.result() != what.endswith(UNBROKEN.name)
            print("noticed" if result.result() else "passed ", what, "" if is_right else "<- WRONG", flush=True)
            if not is_right:
                wrong.append(what)
    if wrong:
        sys.exit(f"{len(wrong)} of {len(found)} went wrong: {'; '.join(wrong)}")
    without = f", SKIPPED: the machine code for {', '.join(skipped)}, for which there is no nvcc" if skipped else ""
    print(f"{len(found)} as they should be{without}")


if __name__ == "__main__":
    main()
