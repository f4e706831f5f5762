"""Whether the C++ sources keep to C++20, so that every compiler takes them: what each spells differently is in
src/compiler.h and src/export.h alone.

Not looked at: src/backends/hip, which is for the compilers of GPUs; attributes in brackets, such as [[gnu::const]], as
C++ has a compiler ignore those that it does not know. `make lint` runs this; it prints each place with an extension of
GCC, Clang or MSVC.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
ROOM = {SOURCES / "compiler.h", SOURCES / "export.h"}
OF_GPU_COMPILERS = SOURCES / "backends/hip"

EXTENSION = re.compile(
    r"__attribute__|__extension__|__restrict\w*|__typeof\w*|\btypeof\b|__int128\w*|__label__"
    r"|\b__builtin_\w+|\basm\b|\b__asm\w*"
    r"|\b__declspec\b|\b__forceinline\b|\b__vectorcall\b|\b__assume\b"
    r"|#\s*pragma\s+(?!once\b).*|\b_Pragma\b|\b__pragma\b"
)


def in_cpp(text: str) -> Iterator[tuple[int, str]]:
    """The extensions in a C++ source, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := EXTENSION.search(line.partition("//")[0]):
            yield number, found[0]


def problems() -> Iterator[str]:
    """One line for each extension where none is to be."""
    for path in sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cpp", ".h")):
        if path not in ROOM and OF_GPU_COMPILERS not in path.parents:
            for line, name in in_cpp(path.read_text(encoding="utf-8")):
                yield f"{path.relative_to(ROOT)}:{line}: {name} is for src/compiler.h alone"


if __name__ == "__main__":
    found = list(problems())
    print("\n".join(found) or "Extensions of compilers are used where they are to be")
    sys.exit(bool(found))
