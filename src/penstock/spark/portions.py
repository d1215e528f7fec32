"""How much of what waits goes into one micro-batch, shared fairly among channels."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.ids.ids import Span


def portion(waiting: Mapping[str, Span], most: int | None) -> dict[str, int]:
    """Where a micro-batch of ``most`` events ends in each channel; None: it takes all.

    Channels get the same number of events; what one has no use for, the others share.
    """
    sizes = {name: max(0, span.size) for name, span in waiting.items()}
    shares = sizes if most is None else fair(sizes, most)
    return {name: span.first + shares[name] for name, span in waiting.items()}


def fair(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """``most`` divided: nobody gets more than is wanted, and nobody less than another who wants
    more, but for the last unit."""
    shares = {}
    left = most
    for number, (name, size) in enumerate(sorted(wanted.items(), key=lambda each: each[1])):
        shares[name] = min(size, -(-left // (len(wanted) - number)))
        left -= shares[name]
    return shares


def parts_of(parts_min: int | None, rows: Mapping[str, int]) -> dict[str, int | None]:
    """How many partitions each channel is to have, by its share of the rows; None: as many as
    its size asks for."""
    total = sum(rows.values())
    if parts_min is None or not total:
        return dict.fromkeys(rows)
    return {name: max(1, -(-parts_min * count // total)) for name, count in rows.items()}
