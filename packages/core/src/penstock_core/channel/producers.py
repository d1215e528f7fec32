"""Remembers publishes, so that a retry is stored only once (SEM X3).

A producer numbers its publishes upwards. The realm remembers the newest of them with the ids they
got. A number that it remembers is a retry. One that it does not, above the oldest remembered, was
never stored, because it was refused, and is decided like any other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from penstock_core.access.name_owners import (
    CONTENT_MARK,
    MARK,
    owner_of,
    plain,
    with_content,
    without_content,
)
from penstock_core.ids.ids import Span
from penstock_core.messages.snapshots import ProducerState
from penstock_core.messages.transactions import StoreSpans
from penstock_core.vocabulary.errors import DifferentContent, SequenceTooOld

Ids = TypeVar("Ids")
"""What a publish was answered with: a span, or one for each store it went to."""

REMEMBERED_MAX = 1_024
"""Publishes remembered per producer: more than a client may have unanswered."""

FORGET_AFTER_US = 24 * 3_600 * 1_000_000
"""A producer that has been silent this long is forgotten."""

LASTING_PREFIX = "txn:"
"""Producers named so are transactions of a pipeline: a checkpoint may come back after months, so
they are remembered for longer than a year; of fewer publishes instead."""

LASTING_REMEMBERED_MAX = 64

LASTING_FORGET_AFTER_US = 400 * FORGET_AFTER_US
"""A pipeline that has been silent this long is forgotten."""

LASTING_NAMES_MAX = 1_000
"""Pipelines remembered of one user; then the one that has been silent the longest is forgotten."""

NAMES_MAX = 100_000
"""Most other producers that are remembered; beyond it, the tenth that is silent for longest is
dropped."""


class _ProducerMemory(Generic[Ids]):
    __slots__ = ("at_us", "contents", "forgotten", "recent")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        self.contents: dict[int, str] = {}
        """What identifies the content of publishes, by sequence, where it was said."""
        self.recent: list[tuple[int, Ids]] = []
        self.forgotten = -1
        """The highest sequence whose ids are forgotten."""


class Remembered(Generic[Ids]):
    """Publishes by producer and sequence. Soft in nothing: it is part of every snapshot."""

    __slots__ = ("_by_name", "_lasting", "_pruned_us")

    def __init__(self) -> None:
        self._by_name: dict[str, _ProducerMemory[Ids]] = {}
        self._pruned_us = 0
        self._lasting: dict[str, set[str]] = {}
        """Names of producers that belong to pipelines, by user."""

    def __len__(self) -> int:
        return len(self._by_name)

    def stored_as(self, name: str, sequence: int) -> Ids | None:
        """The ids that this publish got when it was stored; None if it was never stored.

        Raises ``SequenceTooOld`` if it is too old to tell, and ``DifferentContent`` if both the
        stored publish and ``name`` identify their content, and differ.
        """
        if CONTENT_MARK in name:
            return self._stored_with(*without_content(name), sequence)
        memory = self._by_name.get(name)
        is_new = memory is not None and memory.recent and sequence > memory.recent[-1][0]
        if is_new and MARK not in name:  # the usual case
            return None
        found = self._stored_as(name, sequence)
        if found is None and (before := plain(name)) != name:
            return self._stored_as(before, sequence)  # stored when the realm did not know its users
        return found

    def _stored_with(self, name: str, content: str, sequence: int) -> Ids | None:
        """The ids of this publish, if it was stored with this content or it is not known which."""
        ids = self.stored_as(name, sequence)
        if ids is None:
            return None
        memory = self._by_name.get(name) or self._by_name.get(plain(name))
        stored = memory.contents.get(sequence, content) if memory is not None else content
        if stored != content:
            raise DifferentContent(
                f"publish {sequence} of producer {plain(name)} is stored with the content "
                f"{stored}, and comes again with the content {content}; nothing was stored. Go on "
                f"with the state that was saved last, or use a new producer"
            )
        return ids

    def newest(self, name: str) -> int:
        """The highest sequence of a producer's publishes that is known to be stored; -1: none is.
        A producer that publishes in order, one after the other, has stored all up to there."""
        memory = self._by_name.get(name)
        if memory is None:
            return -1
        return memory.recent[-1][0] if memory.recent else memory.forgotten

    def _stored_as(self, name: str, sequence: int) -> Ids | None:
        memory = self._by_name.get(name)
        if memory is None:
            return None
        recent = memory.recent
        i = bisect_left(recent, sequence, key=lambda entry: entry[0])
        if i < len(recent) and recent[i][0] == sequence:
            return recent[i][1]
        if sequence <= memory.forgotten:
            raise SequenceTooOld(
                f"publish {sequence} of producer {plain(name)} is older than the {len(recent)} "
                f"publishes remembered; use a new producer"
            )
        return None

    def stored(self, name: str, sequence: int, ids: Ids, at_us: int) -> None:
        content = ""
        if CONTENT_MARK in name:
            name, content = without_content(name)
        memory = self._by_name.get(name)
        if memory is None:
            memory = _ProducerMemory(at_us)
            self._added(name, memory)
            self._make_room(name)
        memory.at_us = at_us
        recent = memory.recent
        if not recent or sequence > recent[-1][0]:
            recent.append((sequence, ids))
        else:
            insort(recent, (sequence, ids), key=lambda entry: entry[0])
        if content:
            memory.contents[sequence] = content
        lasting = name.startswith(LASTING_PREFIX)
        limit = LASTING_REMEMBERED_MAX if lasting else REMEMBERED_MAX
        if len(recent) >= 2 * limit:
            memory.forgotten = recent[-limit - 1][0]
            del recent[:-limit]
            for old in [each for each in memory.contents if each <= memory.forgotten]:
                del memory.contents[old]
        if at_us - self._pruned_us >= FORGET_AFTER_US // 24:
            self._prune(at_us)

    def lower(self, now_us: int) -> None:
        """Take publishes later than ``now_us`` as made then: an earlier start of the realm had a
        clock that was ahead, and would have them remembered for too long."""
        self._pruned_us = min(self._pruned_us, now_us)
        for memory in self._by_name.values():
            memory.at_us = min(memory.at_us, now_us)

    def _added(self, name: str, memory: _ProducerMemory[Ids]) -> None:
        self._by_name[name] = memory
        if name.startswith(LASTING_PREFIX):
            self._lasting.setdefault(owner_of(name), set()).add(name)

    def _make_room(self, newest: str) -> None:
        """Names have an end, whoever makes them up: ``newest`` is not among those that go."""
        if newest.startswith(LASTING_PREFIX):
            own = self._lasting[owner_of(newest)]
            if len(own) > LASTING_NAMES_MAX:
                self._forget_silent(own - {newest}, 1)
        elif len(self._by_name) > NAMES_MAX + sum(map(len, self._lasting.values())):
            lasting = set().union(*self._lasting.values())
            self._forget_silent(self._by_name.keys() - lasting - {newest}, NAMES_MAX // 10)

    def _forget_silent(self, names: Iterable[str], count: int) -> None:
        """Forget those ``count`` of ``names`` that have been silent the longest."""
        by_time = ((self._by_name[name].at_us, name) for name in names)
        for _, name in heapq.nsmallest(count, by_time):
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._by_name[name]
        if name.startswith(LASTING_PREFIX):
            self._lasting[owner_of(name)].discard(name)

    def _prune(self, now_us: int) -> None:
        self._pruned_us = now_us
        for name, memory in list(self._by_name.items()):
            lasts = name.startswith(LASTING_PREFIX)
            silent_us = now_us - memory.at_us
            if silent_us > (LASTING_FORGET_AFTER_US if lasts else FORGET_AFTER_US):
                self._forget(name)

    def remembered(self) -> Iterator[tuple[str, int, int, tuple[tuple[int, Ids], ...]]]:
        """Everything remembered: name, highest forgotten sequence, time of the newest, sequences
        with ids. A publish with an identity of its content has an entry under a name with that."""
        for name, memory in self._by_name.items():
            contents = memory.contents
            others = tuple(entry for entry in memory.recent if entry[0] not in contents)
            yield name, memory.forgotten, memory.at_us, others if contents else tuple(memory.recent)
            for sequence, ids in memory.recent if contents else ():
                if sequence in contents:
                    full_name = with_content(name, contents[sequence])
                    yield full_name, -1, memory.at_us, ((sequence, ids),)

    def put_back(
        self, name: str, forgotten: int, at_us: int, recent: list[tuple[int, Ids]]
    ) -> None:
        """Take in what :meth:`remembered` gave."""
        if CONTENT_MARK in name:
            for sequence, ids in recent:
                self.stored(name, sequence, ids, at_us=at_us)
            return
        memory: _ProducerMemory[Ids] = _ProducerMemory(at_us)
        memory.forgotten, memory.recent = forgotten, recent
        self._added(name, memory)


class Producers(Remembered[Span]):
    """The memory of one channel."""

    __slots__ = ()

    def state(self) -> tuple[ProducerState, ...]:
        return tuple(ProducerState(*each) for each in self.remembered())

    def restore(self, states: tuple[ProducerState, ...]) -> None:
        for state in states:
            recent = [(sequence, Span(*span)) for sequence, span in state.recent]
            self.put_back(state.name, state.forgotten, state.at_us, recent=recent)


class JointProducers(Remembered[StoreSpans]):
    """The memory of a realm: publishes to several stores in one step."""

    __slots__ = ()
