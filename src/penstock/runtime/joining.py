"""Joins at work: what is published on a store is copied on in the same step (SEM L)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.columns.batch import stamp
from penstock.columns.origin import for_join, path_contains, path_lengths
from penstock.columns.selectors import selector_of
from penstock.core.ids import Span
from penstock.core.joins import HOPS_MAX, Join
from penstock.runtime.bodies import UNLIMITED, Body, body_from, digest_of
from penstock.runtime.message_fields import messages_of

if TYPE_CHECKING:
    from penstock.runtime.group import Group

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


class Way:
    """Where the events of one publish have been already, in this step.

    An event that reaches a store by two routes is stored there once (SEM L1); archives keep what
    comes (SEM L3).
    """

    __slots__ = ("roots", "seen")

    def __init__(self, roots: Rows, seen: dict[int, Bools]) -> None:
        self.roots = roots
        """Which event of the first publish each row is a copy of."""
        self.seen = seen
        """By store: which of them it has got."""

    def on(self, roots: Rows) -> Way:
        return Way(roots, self.seen)

    def has_been(self, number: int, roots: Rows) -> Bools:
        there = self.seen.get(number)
        return np.zeros(len(roots), dtype=np.bool_) if there is None else there[roots]

    def comes_to(self, number: int, roots: Rows) -> None:
        size = len(next(iter(self.seen.values())))
        self.seen.setdefault(number, np.zeros(size, dtype=np.bool_))[roots] = True


def copy(
    group: Group,
    number: int,
    joins: Sequence[Join],
    span: Span,
    bodies: Sequence[Body],
    publisher: str,
    way: Way | None,
) -> None:
    """Publish the copies of what was just published on channel ``number``."""
    if way is None:
        way = Way(np.arange(span.size), {number: np.ones(span.size, dtype=np.bool_)})
    name = group.state.channels[number].state.name
    for join in joins:
        copies: list[Body] = []
        roots: list[Rows] = []
        first = span.first
        for body in bodies:
            end = first + body.batch.num_rows
            own = way.roots[first - span.first : end - span.first]
            wanted = _wanted(group, join, body.batch, Span(first, end), own, way)
            if wanted.any():
                ids = np.arange(first, end, dtype=np.int64)[wanted]
                batch = body.batch.filter(pa.array(wanted))
                copies.append(body_from(for_join(batch, ids, group.now_us, name)))
                roots.append(own[wanted])
            first = end
        if not copies:
            continue
        ours = np.concatenate(roots)
        way.comes_to(join.destination, ours)
        group.state.joined(join).copied += len(ours)
        group.publish(
            join.destination,
            copies,
            digest_of(copies, UNLIMITED),
            forced=True,
            in_journal=True,
            publisher=publisher,
            way=way.on(ours),
        )


def _wanted(
    group: Group, join: Join, batch: pa.RecordBatch, span: Span, roots: Rows, way: Way
) -> Bools:
    """Which rows the join copies."""
    wanted = np.ones(batch.num_rows, dtype=np.bool_)
    if join.selector:
        stamped = stamp(batch, span, group.now_us)
        messages = messages_of(group.state.channels[join.source])
        selector = selector_of(join.selector)
        mask = selector.mask(stamped, now_us=group.now_us, messages=messages)
        wanted = np.asarray(mask.fill_null(False).to_numpy(zero_copy_only=False))
    destination = group.state.channels[join.destination].state.name
    goes_round = np.asarray(path_contains(batch, destination).to_numpy(zero_copy_only=False))
    too_far = path_lengths(batch) > HOPS_MAX
    stopped = wanted & (goes_round | too_far)
    if stopped.any():
        group.state.joined(join).dropped += int(np.count_nonzero(stopped))
    wanted = wanted & ~stopped
    if not join.archive:
        wanted = wanted & ~way.has_been(join.destination, roots)
    return np.asarray(wanted, dtype=np.bool_)
