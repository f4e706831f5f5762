"""What a conversion did, for its user to read, and to undo."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

from torch import nn

from .fused import FusedModule


class Replaced(NamedTuple):
    """A module that :func:`fastops.nn.convert` gave another ``forward``."""

    name: str
    """The qualified name in the model; empty for the model itself."""
    module: nn.Module
    """The module."""
    original: type[nn.Module]
    """Its class before."""
    ops: str
    """The ops that compute it now."""


class Left(NamedTuple):
    """A module that has layers to fuse, but that :func:`fastops.nn.convert` left as it is."""

    name: str
    """The qualified name in the model; empty for the model itself."""
    module: nn.Module
    """The module."""
    reason: str
    """Why it was left."""


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What :func:`fastops.nn.convert` did; printed as a table.

    Attributes:
        model: the model that was given.
        replaced: for each converted module, its qualified name, the module, its original class, and the ops.
        left: for each module that was considered and left, its qualified name, the module, and the reason.
    """

    model: nn.Module
    replaced: list[Replaced]
    left: list[Left]

    def revert(self) -> None:
        """Gives the converted modules their original classes back.

        Raises:
            RuntimeError: the class of one was changed by somebody else in the meantime. None is reverted then.
        """
        converted = [row for row in self.replaced if isinstance(row.module, FusedModule)]
        for row in converted:
            if not type(row.module).__dict__.get("_fastops_original"):
                raise RuntimeError(
                    f"fastops.nn.convert: cannot revert '{row.name}', whose class was changed to "
                    f"{type(row.module).__qualname__} after the conversion; undo that first"
                )
        for row in converted:
            object.__setattr__(row.module, "__class__", row.original)

    def _leave_out(self, modules: set[int]) -> None:
        """Of modules that were converted, and that another one computes, it is only that one that is."""
        for row in self.replaced:
            if id(row.module) in modules:
                object.__setattr__(row.module, "__class__", row.original)
        self.replaced[:] = [row for row in self.replaced if id(row.module) not in modules]
        self.left[:] = [row for row in self.left if id(row.module) not in modules]

    def __str__(self) -> str:
        replaced = [(row.name, row.original.__name__, row.ops) for row in self.replaced]
        left = [(row.name, type(row.module).__name__, row.reason) for row in self.left]
        return "\n".join([*_table("replaced", replaced), *_table("left", left)])

    __repr__ = __str__


def _table(title: str, rows: list[tuple[str, str, str]]) -> list[str]:
    """The rows aligned; those that differ only in the numbers within their names are one."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, kind, text in rows:
        groups.setdefault((re.sub(r"\d+", "*", name), kind, text), []).append(name or "(the model)")
    shown = [
        (names[0] if len(names) == 1 else f"{pattern} ({len(names)} times)", kind, text)
        for (pattern, kind, text), names in groups.items()
    ]
    widths = [max((len(row[i]) for row in shown), default=0) for i in range(2)]
    lines = [f"  {name:{widths[0]}}  {kind:{widths[1]}}  {text}" for name, kind, text in shown]
    return [f"{title}: {len(rows)}", *lines]
