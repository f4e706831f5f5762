"""Operator fusion through ``torch.compile``: ``torch.compile(model, backend="fastops")``, and :func:`explain`."""

from .backend import backend
from .explain import Explanation, explain

__all__ = ["Explanation", "backend", "explain"]


def __dir__() -> list[str]:
    return __all__
