"""Writes the Python functions and modules of the activations from src/activations/table.h.

Run by CMake; by hand: python tools/generate_activations.py src/activations/table.h OUTPUT
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

HEADER = '''"""The activations as functions and modules. Generated from src/activations/table.h: do not edit."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.jit import is_scripting

from . import _C
from ._eager import check_bool, check_tensor
from ._torch_internal import is_function_mode_enabled

# A call of fastops._C ends in the dispatcher, which sees every mode and every subclass but what Python overrides and
# what Dynamo would have to read. To ask for these takes as long as a few thousand elements: so it is done in place, and
# of what is cheap to ask for.
'''

FUNCTION = '''

def {name}(input: Tensor{signature}, inplace: bool = False) -> Tensor:
    """{formula}, elementwise.

    {source}

    Args:
        input: any shape and strides; float32, float64, bfloat16 or float16 (16-bit: computed in float32).
{arguments}        inplace: write the result into ``input``.

    Returns:
        A tensor of ``input``'s shape and dtype.

    Raises:
        TypeError: ``input`` is no tensor or has another dtype, or ``inplace`` is no bool.{errors}
    """
    if not is_scripting():
        if not inplace and type(input) is Tensor and not is_dynamo_compiling() and not is_function_mode_enabled():
            return _C.{name}({call})
        if type(input) is not Tensor:
            check_tensor("{name}", input)
        if inplace:
            check_bool("{name}", inplace)
    if inplace:
        return torch.ops.fastops.{name}_({call})
    return torch.ops.fastops.{name}({call})
'''

MODULE = '''

class {class_name}(nn.Module):
    """{formula}, elementwise: :func:`fastops.functional.{name}` as a module.

    {source} The arguments are those of the function; a value that it refuses is an error of the first call.
    """

    __constants__: ClassVar[list[str]] = [{constants}]

    def __init__(self{signature}, inplace: bool = False) -> None:
        super().__init__()
        if inplace:
            check_bool("nn.{class_name}", inplace)
{assignments}        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return {name}({self_call}, self.inplace)

    def extra_repr(self) -> str:
        return {repr}{in_place}
'''

# Where PyTorch has the activation under another name, or not at all.
SOURCES = {
    "gelu": 'As ``torch.nn.functional.gelu`` with ``approximate="none"``; for ``"tanh"`` there is ``gelu_tanh``.',
    "gelu_tanh": 'As ``torch.nn.functional.gelu`` with ``approximate="tanh"``.',
    "identity": "A copy of the input, where ``torch.nn.Identity`` gives the input itself.",
    "quick_gelu": "The sigmoid approximation of Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.",
    "relu_squared": "So et al., Primer: Searching for Efficient Transformers for Language Modeling, 2021.",
    "sigmoid": "As ``torch.sigmoid``.",
    "sin": "As ``torch.sin``; with an omega, as in SIREN (Sitzmann et al., 2020).",
    "tanh": "As ``torch.tanh``.",
}


class Activation(NamedTuple):
    name: str
    class_name: str
    parameters: list[tuple[str, str]]  # name, default
    constraint: str
    formula: str


def read_table(text: str) -> list[Activation]:
    line = re.compile(r'^  X\((\w+), (\w+), "(.*?)", "(.*?)", "(.*?)"\)', re.MULTILINE)
    parameter = re.compile(r"float (\w+)=([-\d.]+)")
    return [
        Activation(name, class_name, parameter.findall(parameters), constraint, formula)
        for name, class_name, parameters, constraint, formula in line.findall(text)
    ]


def render(activation: Activation) -> str:
    names = [name for name, _ in activation.parameters]
    fields = {
        "name": activation.name,
        "class_name": activation.class_name,
        "formula": f"``{activation.formula}``",
        "source": SOURCES.get(activation.name, f"As ``torch.nn.functional.{activation.name}``."),
        "signature": "".join(f", {name}: float = {default}" for name, default in activation.parameters),
        "arguments": "".join(
            f"        {name}: a number of the formula; {value} by default.\n" for name, value in activation.parameters
        ),
        "errors": f"\n        ValueError: not {activation.constraint}." if activation.constraint else "",
        "call": ", ".join(["input", *names]),
        "self_call": ", ".join(["input", *(f"self.{name}" for name in names)]),
        "constants": ", ".join(f'"{name}"' for name in [*names, "inplace"]),
        "assignments": "".join(f"        self.{name} = {name}\n" for name in names),
        "repr": f'f"{", ".join(f"{name}={{self.{name}}}" for name in names)}" + ' if names else "",
        "in_place": '(", inplace=True" if self.inplace else "")' if names else '"inplace=True" if self.inplace else ""',
    }
    return FUNCTION.format(**fields) + MODULE.format(**fields)


def main(table: str, output: str) -> None:
    activations = read_table(Path(table).read_text())
    functions = [activation.name for activation in activations]
    modules = [activation.class_name for activation in activations]
    text = HEADER + f"\nFUNCTIONS = {functions!r}\nMODULES = {modules!r}\n"
    Path(output).write_text(text + "".join(map(render, activations)))


if __name__ == "__main__":
    main(*sys.argv[1:])
