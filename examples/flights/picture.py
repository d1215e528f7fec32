"""Draws the picture: the average delay of each carrier over the year."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_INK, _SOFT, _QUIET, _GRID = "#1f2933", "#52606d", "#9aa5b1", "#e9edf1"
_LATE, _EARLY = "#d1495b", "#2e86ab"
_COLUMNS = 4
_WEEKLY_FROM_DAYS = 60
"""Shorter periods are drawn day by day."""
_FLIGHTS_MIN = 5
"""Minimum number of flights of an average; with fewer, it would be arbitrary."""

Float64s = npt.NDArray[np.float64]
Curve = tuple[npt.NDArray[np.datetime64], Float64s]
"""First days of weeks (or days), and average delays in minutes."""


def draw(sums: pa.Table, names: Mapping[str, str], file: Path) -> None:
    """Draw average departure delays from sums by carrier and day, and write them as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    step = _step(sums)
    everyone = _curve(sums, step)
    carriers = _by_size(sums)
    rows = -(-len(carriers) // _COLUMNS)
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 9, "text.color": _INK}):
        figure, grid = plt.subplots(
            rows,
            _COLUMNS,
            figsize=(13, 2.0 * rows + 1.3),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axes, carrier in zip(grid.flat, carriers, strict=False):
            own = sums.filter(pc.equal(sums["carrier"], carrier))
            _panel(axes, _curve(own, step), everyone)
            _label(axes, _short(names.get(carrier, carrier)), own)
        for axes in grid.flat[len(carriers) :]:
            axes.set_axis_off()
        _frame(grid, everyone)
        figure.suptitle(
            f"Average departure delay from New York, minutes by {'week' if step == 7 else 'day'} "
            "(grey: all carriers)",
            fontsize=13,
            fontweight="bold",
            x=0.012,
            y=1.03,
            ha="left",
        )
        figure.savefig(file, dpi=130, facecolor="white", bbox_inches="tight", pad_inches=0.2)
        plt.close(figure)


def _step(sums: pa.Table) -> int:
    """Return the number of days that each point of a curve covers."""
    return 7 if np.ptp(_days(sums)).astype(int) >= _WEEKLY_FROM_DAYS else 1


def _days(sums: pa.Table) -> npt.NDArray[np.datetime64]:
    return np.array(sums["day"].to_pylist(), dtype="datetime64[D]")


def _curve(sums: pa.Table, step: int) -> Curve:
    """Return the average delays of each ``step`` days; NaN for days with too few flights."""
    days = _days(sums)
    first = days.astype("datetime64[Y]").astype("datetime64[D]").min()
    slots = (days - first).astype(int) // step
    # The last day or two of a year count as part of the last week.
    slots = np.minimum(slots, max(0, 365 // step - 1)) if step > 1 else slots
    count = int(slots.max()) + 1
    minutes = np.bincount(slots, sums["departure_delay"].to_numpy(), count)
    departed = np.bincount(slots, sums["departed"].to_numpy(), count)
    few = departed < _FLIGHTS_MIN
    averages = np.where(few, np.nan, minutes / np.maximum(departed, 1))
    return first + np.arange(count) * step, averages


def _by_size(sums: pa.Table) -> list[str]:
    """Return the carriers, those with the most flights first."""
    flights = sums.group_by("carrier").aggregate([("flights", "sum")])
    largest: list[str] = flights.sort_by([("flights_sum", "descending")])["carrier"].to_pylist()
    return largest


def _panel(axes: Any, own: Curve, everyone: Curve) -> None:
    """Draw the curves of one carrier and of all carriers."""
    axes.axhline(0, color=_QUIET, linewidth=0.7)
    axes.plot(*everyone, color=_QUIET, linewidth=1.0)
    days, averages = own
    shade = {"alpha": 0.2, "linewidth": 0, "interpolate": True}
    axes.fill_between(days, averages, 0, where=averages >= 0, color=_LATE, **shade)
    axes.fill_between(days, averages, 0, where=averages <= 0, color=_EARLY, **shade)
    axes.plot(days, averages, color=_LATE, linewidth=1.6, marker="o", markersize=1.8)


def _short(name: str) -> str:
    """Return a name without the legal form of the company, because panels are narrow."""
    return re.sub(r" (Inc\.|Co\.|Corporation)$", "", name)


def _label(axes: Any, name: str, own: pa.Table) -> None:
    flights, departed = (pc.sum(own[column]).as_py() for column in ("flights", "departed"))
    average = pc.sum(own["departure_delay"]).as_py() / max(1, departed)
    axes.set_title(name, loc="left", fontsize=9.5, fontweight="bold", color=_INK)
    axes.set_title(f"{average:+.1f} min, {flights:,} flights", loc="right", fontsize=8, color=_SOFT)


def _frame(grid: Any, everyone: Curve) -> None:
    """Use the same axes in all panels. Their limits depend on the average of all carriers, so that
    the worst week of one carrier does not make the other curves flat."""
    from matplotlib import dates as mpl_dates

    dates: Any = mpl_dates

    days, averages = everyone
    highest = max(40.0, 1.6 * float(np.nanmax(averages, initial=0)))
    is_long = len(days) > 1 and days[-1] - days[0] > np.timedelta64(_WEEKLY_FROM_DAYS, "D")
    for axes in grid.flat:
        axes.set_ylim(-15, highest)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelcolor=_SOFT, labelsize=8)
        axes.xaxis.set_major_locator(
            dates.MonthLocator(bymonth=(1, 4, 7, 10)) if is_long else dates.AutoDateLocator()
        )
        axes.xaxis.set_major_formatter(dates.DateFormatter("%b" if is_long else "%-d %b"))
        for spine in axes.spines.values():
            spine.set_visible(False)
