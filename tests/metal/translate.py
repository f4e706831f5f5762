"""From Metal code to what clang on Linux compiles, with the stand-in for <metal_stdlib> in shim/.

``strict``  C++ for OpenCL, which has Metal's address spaces and restrictions: for -fsyntax-only
``exec``    C++14 with the address spaces erased: kernels that run on the CPU, and their table

The preprocessor runs with an empty <metal_stdlib>, so that the project's own includes and macros are expanded and
plain Metal is left. Then what upstream clang does not parse is rewritten (host names, parameter attributes), and what
it would let pass though Metal does not have it is refused.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).parents[2]
CLANG = "clang-19"
SYSTEM_HEADERS = ["metal_stdlib", "metal_simdgroup", "metal_simdgroup_matrix"]

# What clang cannot be told to refuse, though it does not exist in Metal or means something else there.
FORBIDDEN = [
    (r"\bdouble\b", "Metal has no double"),
    (r"\bgoto\b", "Metal has no goto"),
    (r"(?<![\w.])(\d+\.\d*|\.\d+)(e[-+]?\d+)?(?![\w.])", "a floating-point literal without suffix, outside of S()"),
    (r"(?<![\w\])])\[[&=]?\s*\]\s*\(", "lambdas need Metal 3.2"),
    (r"\bstatic\s+(?!constant\b|constexpr\b|inline\b)[\w:<> ]+(=|;|\[)", "Metal has no static variables"),
    (r"\b(dynamic_cast|typeid|thread_local|new|delete|throw|virtual|try)\b", "not in Metal"),
]
UNSUFFIXED = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:e[-+]?\d+)?)(?![\w.])")


class Kernel(NamedTuple):
    """A kernel function as it is written."""

    attributes: list[tuple[str, int]]  # of each parameter: its kind, and the index of a buffer
    is_template: bool
    collective: bool  # whether its threads work together, so that each needs a stack of its own


class NotMetalError(Exception):
    """The text is not Metal."""


def refuse(message: str) -> NoReturn:
    raise NotMetalError(message)


def flatten(path: Path, defines: Sequence[str], include: Path) -> str:
    """The file after the preprocessor, with the includes of Metal's own headers left in."""
    with tempfile.TemporaryDirectory() as directory:
        for header in SYSTEM_HEADERS:
            Path(directory, header).write_text(f"@@INCLUDE <{header}>\n")
        flags = "-E -P -undef -nostdinc -x c++ -D__METAL__ -D__METAL_VERSION__=310".split()
        includes = ["-I", directory, "-I", str(include)]
        command = [CLANG, *flags, *[f"-D{define}" for define in defines], *includes, str(path)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        refuse(result.stderr)
    return re.sub(r"@@INCLUDE (<\w+>)", r"#include \1", result.stdout)


def closing(text: str, start: int, pair: str = "()") -> int:
    """The place of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i
    refuse(f"unbalanced: {text[start : start + 60]}")


def split_parameters(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if parts[-1].strip() else parts[:-1]


def find_kernels(text: str) -> dict[str, Kernel]:
    """The definitions of kernel functions."""
    kernels = {}
    for match in re.finditer(r"(?:\bkernel|\[\[kernel\]\])\s+void\s+(\w+)\s*\(", text):
        end = closing(text, match.end() - 1)
        body = re.match(r"\s*\{", text[end + 1 :])
        if not body:
            continue
        body_end = closing(text, end + body.end(), "{}")
        attributes = []
        for parameter in split_parameters(text[match.end() : end]):
            attribute = re.search(r"\[\[\s*(\w+)\s*(?:\((\d+)\))?\s*\]\]", parameter)
            if not attribute:
                refuse(f"kernel {match[1]}: a parameter without attribute: {parameter.strip()}")
            attributes.append((attribute[1], int(attribute[2] or 0)))
            if attribute[1] == "buffer" and not re.match(r"\s*(const\s+)?(device|constant)\b", parameter):
                refuse(f"kernel {match[1]}: a buffer without address space: {parameter.strip()}")
        collective = bool(re.search(r"\bthreadgroup\b|_barrier|\bsimd_|\bsimdgroup_", text[end:body_end]))
        is_template = bool(re.search(r"template\s*<[^;{}]*>\s*$", text[: match.start()]))
        kernels[match[1]] = Kernel(attributes, is_template, collective)
    return kernels


def find_instances(text: str, kernels: dict[str, Kernel]) -> list[tuple[str, str, str]]:
    """(host name, kernel function, the function with its template arguments) of everything the host can launch."""
    pattern = (
        r"template\s*\[\[\s*host_name\(\s*((?:\"[^\"]*\"\s*)+)\)\s*\]\]\s*\[\[kernel\]\]\s*"
        r"decltype\(((\w+)\s*<[^;()]*>)\)\s*\2\s*;"
    )
    instances = [
        ("".join(re.findall(r'"([^"]*)"', match[1])), match[3], match[2]) for match in re.finditer(pattern, text)
    ]
    if len(instances) != len(re.findall(r"host_name", text)):
        refuse("an instantiation that is not of the form that FASTOPS_KERNEL makes")
    return instances + [(name, name, name) for name, kernel in kernels.items() if not kernel.is_template]


def check(text: str) -> None:
    """Refuses what clang lets pass."""
    literals_apart = re.sub(r"\bS\([-+*/.\de ]*\)", "S()", text)
    found = [
        f"{message}: {literals_apart[max(0, match.start() - 30) : match.end() + 20]!r}"
        for pattern, message in FORBIDDEN
        for match in re.finditer(pattern, literals_apart)
    ]
    found += [f"a global variable that is not constant: {name}" for name in globals_of(text)]
    if found:
        refuse("\nerror: ".join(found))


def globals_of(text: str) -> list[str]:
    """Variables at namespace scope that are not in the constant address space."""
    found, depth, statement = [], 0, ""
    for character in re.sub(r"\bnamespace\s+[\w:]+\s*\{", " ", re.sub(r"(?m)^#.*", "", text)):
        if character == "{":
            depth += 1
        elif character == "}":
            depth = max(depth - 1, 0)
            if depth == 0 and "=" not in statement:
                statement = ""
        elif depth == 0 and character == ";":
            if "=" in statement and not re.search(
                r"\b(constant|using|operator|template|struct|enum)\b", statement.split("=")[0]
            ):
                found.append(statement.strip()[:60])
            statement = ""
        elif depth == 0:
            statement += character
    return found


THREADGROUP_VARIABLE = re.compile(r"(?<=[;{}])(\s*)threadgroup\s+([\w: ]+?)\s+(\w+)\s*((?:\[[^\]]*\])+)\s*;")


def to_strict(text: str) -> str:
    """C++ for OpenCL has no kernel templates: they become functions, and what they have in threadgroup memory comes
    from outside."""
    text = re.sub(r"(?:\bkernel|\[\[kernel\]\])\s+void\b", "void", text)
    text = THREADGROUP_VARIABLE.sub(r"\1threadgroup \2 (&\3)\4 = *(threadgroup \2(*)\4)0;", text)
    return re.sub(r"(?m)^constant constexpr", "static constant constexpr", text)


def to_executable(text: str, kernels: dict[str, Kernel], instances: list[tuple[str, str, str]]) -> str:
    """Threadgroup memory becomes static and is poisoned; the table of kernels follows."""
    text = re.sub(r"(?:\bkernel|\[\[kernel\]\])\s+void\b", "void", text)
    text = THREADGROUP_VARIABLE.sub(r"\1static \2 \3\4; ::metal_shim::poison_threadgroup(&\3, sizeof(\3));", text)
    text = UNSUFFIXED.sub(r"\1f", text)  # in Metal a literal without suffix is a float
    rows = []
    for host_name, function, call in instances:
        kernel = kernels[function]
        arguments = ", ".join(f"{{::metal_shim::k_{kind}, {index}}}" for kind, index in kernel.attributes)
        rows.append(
            f'  {{"{host_name}", &::metal_shim::Invoke<decltype(&{call})>::go, (void*)(&{call}), {{{arguments}}}, '
            f"{len(kernel.attributes)}, {int(kernel.collective)}}},"
        )
    table = "\n".join(rows)
    return (
        f'{text}\n#include "dispatch.h"\n'
        "namespace fastops { namespace mps { namespace {\n"
        f"const ::metal_shim::KernelEntry entries[] = {{\n{table}\n}};\n"
        f"const ::metal_shim::Register registered(entries, {len(rows)});\n}} }} }}\n"
    )


def translate(mode: str, source: Path, output: Path, defines: Sequence[str], include: Path) -> None:
    """Writes what clang compiles in a mode, `strict` or `exec`, with these macros and directory of includes."""
    text = flatten(source, defines, include)
    check(text)
    kernels = find_kernels(text)
    instances = find_instances(text, kernels)
    text = re.sub(r"template\s*\[\[\s*host_name\([^)]*\)\s*\]\]\s*\[\[kernel\]\]", "template", text)
    if mode == "strict":
        text = to_strict(text)
    text = re.sub(r"\[\[\s*(?!kernel)\w+\s*(\(\d+\))?\s*\]\]", "", text)
    if mode == "exec":
        text = to_executable(text, kernels, instances)
    output.write_text(f"// from {source.name}\n{text}")
