"""Loads the native library, after making sure that it was built for the torch at hand."""

from __future__ import annotations

import torch

from . import _build


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


if _minor(torch.__version__) != _minor(_build.torch_version):
    raise ImportError(
        f"This fastops was built for torch {_minor(_build.torch_version)}, but torch {torch.__version__} is installed: "
        "install the fastops wheel for it, or rebuild with "
        "`pip install --no-build-isolation --no-binary fastops fastops`."
    )

from . import _C  # noqa: E402, F401  (registers the ops)
