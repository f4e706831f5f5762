"""torchvision without its compiled ops, which may be for another build of torch."""

from __future__ import annotations

import importlib

import torch


def import_torchvision() -> None:
    """The Python part, which timm needs, and models of transformers where it is there."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):  # what importing it asks for
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
        importlib.import_module("torchvision")
