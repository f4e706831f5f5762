"""Writes sources.cpp: the text of Metal files, with the project's own includes in their place.

    embed.py OUTPUT INCLUDE_DIRECTORY FILE.metal...

Metal compiles the text on the machine that runs it, so no build needs Apple's compiler.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def inlined(path: Path, include_directory: Path, seen: set[Path]) -> str:
    """The file's text without `#pragma once`, and each of the project's headers where it is first included."""
    if path in seen:
        return ""
    seen.add(path)
    lines = []
    # PyTorch passes the text to Metal as ASCII.
    for line in path.read_text(encoding="ascii").splitlines(keepends=True):
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if include:
            lines.append(inlined(include_directory / include[1], include_directory, seen))
        elif not line.startswith("#pragma once"):
            lines.append(line)
    return "".join(lines)


def main(output: str, include_directory: str, *files: str) -> None:
    """The order of the files is that of the enumerators of Source."""
    texts = [inlined(Path(file), Path(include_directory), set()) for file in files]
    literals = ",\n".join(f'R"metal({text})metal"' for text in texts)
    Path(output).write_text(
        '#include "backends/metal/sources.h"\n\nnamespace fastops::mps {\n\n'
        "const char* source_text(Source source) {\n"
        f"static constexpr const char* texts[source_count] = {{{literals}}};\n"
        "return texts[static_cast<int>(source)];\n}\n\n}  // namespace fastops::mps\n",
        encoding="ascii",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
