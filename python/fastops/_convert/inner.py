"""Layers within layers: those of a ``Sequential``, and of a module that is converted itself."""

from __future__ import annotations

from typing import Any

from torch import nn

from .._eager import is_recorded, is_untouched

_SEQUENTIAL_FORWARD = nn.Sequential.forward


def is_plain_sequential(layer: Any) -> bool:
    """Whether calling it does nothing but calling its modules; it may be converted itself."""
    kind = type(layer)
    if kind is not nn.Sequential and getattr(kind, "_fastops_original", None) is not nn.Sequential:
        return False
    return nn.Sequential.forward is _SEQUENTIAL_FORWARD and is_untouched(layer)


def has_formula(layer: Any) -> bool:
    """Whether it is a converted module that computes one step after another; in this call, or in others."""
    return getattr(type(layer), "_fastops_steps", None) is not None


def layers_within(layer: Any) -> dict[Any, Any] | None:
    """What calling a layer calls one after another, where it does no more than that; None of a single layer."""
    if is_plain_sequential(layer):
        modules: dict[Any, Any] = layer._modules
        return modules
    kind = type(layer)
    steps: Any = getattr(kind, "_fastops_steps", None)
    if steps is None or kind.forward is not kind._fastops_forward or is_recorded(kind) or not is_untouched(layer):
        return None
    found: dict[Any, Any] | None = steps(layer)
    return found


def flattened(layers: dict[Any, Any]) -> dict[Any, Any]:
    """The layers, with those within one of them in its place; the same dictionary if there are none."""
    result: dict[Any, Any] = {}
    is_same = True
    for name, layer in layers.items():
        within = layers_within(layer)
        if within is None:
            result[name] = layer
        else:
            is_same = False
            result |= {f"{name}.{inner}": value for inner, value in flattened(within).items()}
    return layers if is_same else result
