"""Whether PyTorch's internals are used only where they are to be: src/torch_internal and fastops/_torch_internal.py.

In C++ that is headers and namespaces, in Python every name of torch with a part that begins with an underscore. `make
lint` runs this; it prints each place where another file uses one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPP, PYTHON = ROOT / "src", ROOT / "python/fastops"
CPP_ROOM, PYTHON_ROOM = CPP / "torch_internal", PYTHON / "_torch_internal.py"

# Headers that are documented, or that every program with tensors or ops of its own is written with.
PUBLIC_HEADERS = re.compile(
    r"ATen/(ops/.*|core/(Tensor|List|LegacyTypeDispatch)\.h|core/dispatch/.*|cpu/vec/.*"
    r"|(ATen|Context|EmptyTensor|MemoryOverlap|Parallel|TensorOperators|Version|autocast_mode|record_function)\.h)"
    r"|torch/(library|version)\.h|c10/.*"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]((?:ATen|torch|c10|caffe2)/[^>"]+)[>"]')
PRIVATE_NAMES = re.compile(
    r"\b(at::(functionalization|functorch|impl|native|tracer)|torch::(autograd|dynamo|utils)|THP[A-Z]\w+)\b"
)


def in_cpp(text: str) -> Iterator[tuple[int, str]]:
    """The private headers and names in a C++ source, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        if header := INCLUDE.match(line):
            if not PUBLIC_HEADERS.fullmatch(header[1]):
                yield number, f"<{header[1]}>"
        elif name := PRIVATE_NAMES.search(line.partition("//")[0]):
            yield number, name[0]


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """The private names of torch in a Python source, with their lines."""
    nodes = list(ast.walk(ast.parse(text)))
    known: dict[str, str] = {}  # what a name of the file is in torch
    for node in nodes:
        if isinstance(node, ast.Import):
            imported = {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        else:
            continue
        for name, full in imported.items():
            # `import torch.nn` makes `torch` known.
            known |= {name: full} if "." not in name else {name.partition(".")[0]: full.partition(".")[0]}
            if _is_private(full):
                yield node.lineno, full
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            attribute = _dotted(node, known)
            if attribute and _is_private(attribute):
                yield node.lineno, attribute


def _is_private(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "torch" and any(part.startswith("_") and not part.endswith("__") for part in rest)


def _dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    """The full name of what an expression stands for, if it is a name with attributes."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, known)
        return owner and f"{owner}.{node.attr}"
    return None


def problems() -> Iterator[str]:
    """One line for each use of something private."""
    cpp = [path for path in CPP.rglob("*") if path.suffix in (".cpp", ".h", ".hip", ".metal")]
    for path in sorted(cpp):
        if CPP_ROOM not in path.parents:
            for line, name in in_cpp(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}: {name} is for src/torch_internal alone"
    for path in sorted(PYTHON.rglob("*.py")):
        if path != PYTHON_ROOM:
            for line, name in in_python(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}: {name} is for fastops/_torch_internal.py alone"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) or "PyTorch's internals are used where they are to be")
    sys.exit(bool(found))
