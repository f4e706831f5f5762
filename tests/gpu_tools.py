"""The modules of tools/gpu, for the tests of them."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools/gpu"


def gpu_tool(name: str) -> Any:
    """The module; where the tests are without the sources, the test or the file that asks is skipped."""
    if not TOOLS.exists():
        pytest.skip("needs the sources", allow_module_level=True)
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    return importlib.import_module(name)
