"""Which torch fastops depends on: any supported one for the sdist, the minor it was built for in a wheel.

A hook of the build backend, see [[tool.dynamic-metadata]] in pyproject.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

OLDEST = "torch>=2.11"
MISSING = f"""\
fastops is built against the torch that you have, but {sys.executable} cannot import torch.
Install torch first, then build without isolation:
  pip install torch scikit-build-core cmake ninja
  pip install --no-build-isolation ."""


class TorchRequirement:
    def __init__(self) -> None:
        self.state = "sdist"

    def build_state(self, state: str) -> None:
        self.state = state

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        return {"dependencies": [OLDEST if self.state == "sdist" else self.pinned()]}

    @staticmethod
    def pinned() -> str:
        try:
            import torch
        except ImportError:  # said here, before pip fetches a torch that the build would not see
            raise SystemExit(MISSING) from None
        major, minor = torch.__version__.split(".")[:2]
        return f"torch=={major}.{minor}.*"
