"""Operator fusion through ``torch.compile``."""

from .backend import backend

__all__ = ["backend"]
