"""What a program of the package prints with --help: ``{program-help} fastops.bench``."""

from __future__ import annotations

import os
import subprocess
import sys

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class ProgramHelp(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        command = [sys.executable, "-m", self.arguments[0], "--help"]
        environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
        text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("program-help", ProgramHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
