"""The page of the activations: for each its formula, a plot by our kernels, its function and its module."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import matplotlib as mpl
import torch
from formulas import latex
from matplotlib.figure import Figure
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
from generate_activations import Activation, read_table  # noqa: E402

TABLE = ROOT / "src" / "activations" / "table.h"
PLACE = "<!-- the activations -->"
GRAY, BLUE, ORANGE = "#8a8a8a", "#3b82c4", "#e07b22"  # seen on white and on black

SECTION = """
## {name}

$$ {latex} $$

```{{image}} {figure}
:alt: {name} and its derivative from -5 to 5
:class: drawing
```

```{{eval-rst}}
.. autofunction:: fastops.functional.{name}

.. autoclass:: fastops.nn.{class_name}
   :no-members:
```
"""


def _figures(app: Sphinx) -> Path:
    return Path(app.doctreedir) / "activations"


def _draw_all(app: Sphinx) -> None:
    _figures(app).mkdir(parents=True, exist_ok=True)
    for activation in read_table(TABLE.read_text(encoding="utf-8")):
        _draw(activation.name, _figures(app) / f"{activation.name}.svg")


def _draw(name: str, path: Path) -> None:
    """The value and the derivative, at the default parameters, as our kernels compute them."""
    x = torch.linspace(-5, 5, 1001, requires_grad=True)
    y = getattr(torch.ops.fastops, name)(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "text.color": GRAY}):
        figure = Figure(figsize=(5, 2.6), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(x.detach(), y.detach(), color=BLUE, label=name)
        # Where the derivative jumps, a line would say that it does not.
        jumps = torch.where((slope[1:] - slope[:-1]).abs() > 0.2, torch.nan, slope[1:])
        axes.plot(x.detach()[1:], jumps, color=ORANGE, linestyle="--", label="derivative")
        axes.set(xlim=(-5, 5), ylim=(-1.5, 3.5), aspect="equal")
        axes.axhline(0, color=GRAY, linewidth=0.5)
        axes.axvline(0, color=GRAY, linewidth=0.5)
        axes.tick_params(colors=GRAY)
        axes.spines[:].set_visible(False)
        axes.legend(frameon=False, loc="upper left")
        figure.savefig(path, transparent=True, metadata={"Date": None})


def _section(activation: Activation, figures: str) -> str:
    return SECTION.format(
        name=activation.name,
        class_name=activation.class_name,
        latex=latex(activation.formula),
        figure=f"{figures}/{activation.name}.svg",
    )


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    if not re.search(f"^{PLACE}$", source[0], re.MULTILINE):
        return
    app.env.note_dependency(str(TABLE))
    figures = "/" + Path(os.path.relpath(_figures(app), app.srcdir)).as_posix()
    sections = [_section(activation, figures) for activation in read_table(TABLE.read_text(encoding="utf-8"))]
    source[0] = source[0].replace(PLACE, "".join(sections))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _draw_all)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
