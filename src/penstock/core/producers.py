"""Which publishes have been stored already, so that a retry is stored once (SEM X3).

A producer numbers its publishes upwards. The realm remembers the newest of them with the ids
they got. A number it remembers is a retry; one it does not, above the oldest remembered, was
never stored (it was refused) and is decided like any other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from penstock.core.errors import SequenceTooOld
from penstock.core.ids import Span
from penstock.core.messages import ProducerState

Ids = TypeVar("Ids")
"""What a publish was answered with: a span, or one for each store it went to."""

REMEMBERED_MAX = 1_024
"""Publishes remembered per producer: more than a client may have unanswered."""

FORGET_AFTER_US = 24 * 3_600 * 1_000_000
"""A producer that has been silent this long is forgotten."""

LASTING_PREFIX = "txn:"
"""Producers named so are transactions of a pipeline: a checkpoint may come back after months,
so they are never forgotten; they remember fewer publishes instead."""

LASTING_REMEMBERED_MAX = 64


class _Memory(Generic[Ids]):
    __slots__ = ("at_us", "forgotten", "recent")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.recent: list[tuple[int, Ids]] = []
        self.forgotten = -1
        """The highest sequence whose ids are not remembered any more."""


class Remembered(Generic[Ids]):
    """Publishes by producer and sequence. Soft in nothing: it is part of every snapshot."""

    __slots__ = ("_by_name", "_pruned_us")

    def __init__(self) -> None:
        self._by_name: dict[str, _Memory[Ids]] = {}
        self._pruned_us = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def stored_as(self, name: str, sequence: int) -> Ids | None:
        """The ids this publish got when it was stored; None if it never was.

        Raises ``SequenceTooOld`` when that cannot be told any more.
        """
        memory = self._by_name.get(name)
        if memory is None:
            return None
        recent = memory.recent
        if recent and sequence > recent[-1][0]:  # the usual case
            return None
        i = bisect_left(recent, sequence, key=lambda entry: entry[0])
        if i < len(recent) and recent[i][0] == sequence:
            return recent[i][1]
        if sequence <= memory.forgotten:
            raise SequenceTooOld(
                f"publish {sequence} of producer {name} is older than the "
                f"{len(recent)} remembered ones; use a new producer"
            )
        return None

    def stored(self, name: str, sequence: int, ids: Ids, at_us: int) -> None:
        memory = self._by_name.get(name)
        if memory is None:
            memory = self._by_name[name] = _Memory(at_us)
        memory.at_us = at_us
        recent = memory.recent
        if not recent or sequence > recent[-1][0]:
            recent.append((sequence, ids))
        else:
            insort(recent, (sequence, ids), key=lambda entry: entry[0])
        lasting = name.startswith(LASTING_PREFIX)
        limit = LASTING_REMEMBERED_MAX if lasting else REMEMBERED_MAX
        if len(recent) >= 2 * limit:
            memory.forgotten = recent[-limit - 1][0]
            del recent[:-limit]
        self._prune(at_us)

    def _prune(self, now_us: int) -> None:
        if now_us - self._pruned_us < FORGET_AFTER_US // 24:
            return
        self._pruned_us = now_us
        for name, memory in list(self._by_name.items()):
            silent = now_us - memory.at_us > FORGET_AFTER_US
            if silent and not name.startswith(LASTING_PREFIX):
                del self._by_name[name]

    def remembered(self) -> Iterator[tuple[str, int, int, tuple[tuple[int, Ids], ...]]]:
        """All of it: name, highest forgotten sequence, time of the newest, sequences with ids."""
        for name, memory in self._by_name.items():
            yield name, memory.forgotten, memory.at_us, tuple(memory.recent)

    def put_back(
        self, name: str, forgotten: int, at_us: int, recent: list[tuple[int, Ids]]
    ) -> None:
        """Take in what :meth:`remembered` gave."""
        memory: _Memory[Ids] = _Memory(at_us)
        memory.forgotten, memory.recent = forgotten, recent
        self._by_name[name] = memory


class Producers(Remembered[Span]):
    """The memory of one channel."""

    __slots__ = ()

    def state(self) -> tuple[ProducerState, ...]:
        return tuple(ProducerState(*each) for each in self.remembered())

    def restore(self, states: tuple[ProducerState, ...]) -> None:
        for state in states:
            recent = [(sequence, Span(*span)) for sequence, span in state.recent]
            self.put_back(state.name, state.forgotten, state.at_us, recent)


StoreSpans = tuple[tuple[int, Span], ...]
"""By number of the store: the ids its events got."""


class JointProducers(Remembered[StoreSpans]):
    """The memory of a realm: publishes to several stores in one step."""

    __slots__ = ()
