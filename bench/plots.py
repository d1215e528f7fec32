"""Draws pictures of results, with a bar for each contender of each case."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

from bench.report import LABELS, Cell, Result

WIDTH_IN = 8.0
BAR_IN = 0.19
GAP_IN = 0.16
EDGES_IN = 1.1
TEXT = "#8b949e"
"""Colour of texts, which can be read on a white and on a black page."""
OURS_COLOUR = "#e8590c"
COLOURS = ("#4c8dd6", "#3aa675", "#9673c9", "#c99a2e", "#5fb3b3", "#c95f8a", "#7a8699")


def draw(result: Result, folder: Path) -> Path | None:
    """Write the picture of a shape as SVG, and return its path; ``None`` if no cell has a figure.
    Needs matplotlib (group ``bench``)."""
    cells = [cell for cell in result.cells if cell.median(result.figure)]
    if not cells:
        return None
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": result.shape, "font.size": 8})
    from matplotlib import pyplot

    cases = list(dict.fromkeys((cell.case, cell.durability) for cell in cells))
    height = EDGES_IN + len(cells) * BAR_IN + len(cases) * GAP_IN
    figure, axes = pyplot.subplots(figsize=(WIDTH_IN, height), layout="constrained")
    _bars(axes, result, cells, cases=cases)
    _dress(axes, result)
    figure.legend(frameon=False, labelcolor=TEXT, loc="outside lower center", ncols=6)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.shape.lower()}.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": "python -m bench"})
    pyplot.close(figure)
    return path


def _bars(
    axes: Any, result: Result, cells: Sequence[Cell], cases: Sequence[tuple[str, str]]
) -> None:
    """Draw the bars, grouped by case."""
    contenders = list(dict.fromkeys(cell.contender for cell in cells))
    rivals = [name for name in contenders if name != result.ours]
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(rivals)}
    colour[result.ours] = OURS_COLOUR
    named: set[str] = set()
    ticks, labels, place = [], [], 0.0
    for case in cases:
        first = place
        for cell in (cell for cell in cells if (cell.case, cell.durability) == case):
            value = cell.median(result.figure) or 0.0
            axes.barh(
                place,
                value,
                height=BAR_IN * 0.9,
                color=colour[cell.contender],
                xerr=value * (cell.spread(result.figure) or 0.0),
                error_kw={"ecolor": TEXT, "elinewidth": 0.8},
                label=None if cell.contender in named else cell.contender,
            )
            named.add(cell.contender)
            place += BAR_IN
        ticks.append((first + place - BAR_IN) / 2)
        labels.append(" ".join(case).strip())
        place += GAP_IN
    axes.set_yticks(ticks, labels)


def _dress(axes: Any, result: Result) -> None:
    """Add the title and the axis of the figure."""
    better = "more is better" if result.higher_is_better else "less is better"
    # A difference of two times may be 0 or less; it has no place on a logarithmic scale.
    smallest = min((width for bar in axes.patches if (width := bar.get_width()) > 0), default=1.0)
    axes.set_xscale("log")
    axes.set_xlim(left=10 ** floor(log10(smallest)))
    axes.invert_yaxis()
    axes.set_title(f"{result.shape}: {result.title}", color=TEXT, loc="left", fontsize=9)
    label = LABELS.get(result.figure, result.figure)
    axes.set_xlabel(f"{label} ({better}; logarithmic scale)", color=TEXT)
    axes.tick_params(colors=TEXT, which="both", length=0)
    axes.grid(axis="x", color=TEXT, alpha=0.3, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
