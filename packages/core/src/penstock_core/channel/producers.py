"""Remembers publishes, so that a retry is stored only once (SEM X3).

A producer gives its publishes ascending sequence numbers. The realm remembers the newest sequences
with the ids of their events. A remembered sequence is a retry. A sequence above the oldest
remembered one that is not remembered itself was refused, and is decided like a new publish.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from penstock_core.access.name_owners import (
    CONTENT_MARK,
    MARK,
    owner_of,
    plain,
    split_content,
    with_content,
)
from penstock_core.ids.ids import Span
from penstock_core.messages.snapshots import ProducerState
from penstock_core.messages.transactions import StoreSpans
from penstock_core.vocabulary.errors import DifferentContent, SequenceTooOld

Ids = TypeVar("Ids")
"""The answer of a publish: a span, or a span for each store that got events."""

REMEMBERED_MAX = 1_024
"""Publishes remembered per producer; a client may have fewer unanswered publishes."""

FORGET_AFTER_US = 24 * 3_600 * 1_000_000
"""Silence after which a producer is forgotten, in microseconds."""

LASTING_PREFIX = "txn:"
"""Prefix of producers that are transactions of a pipeline. A pipeline may restart from a checkpoint
after months, so these producers are remembered for more than a year, with fewer publishes each."""

LASTING_REMEMBERED_MAX = 64
"""Publishes remembered per pipeline."""

LASTING_FORGET_AFTER_US = 400 * FORGET_AFTER_US
"""Silence after which a pipeline is forgotten, in microseconds."""

LASTING_NAMES_MAX = 1_000
"""Pipelines remembered per user. Beyond this limit, the pipeline that has been silent for longest
is forgotten."""

NAMES_MAX = 100_000
"""Maximum number of other producers. Beyond this limit, the 10 % that have been silent for longest
are forgotten."""


ALL_REMEMBERED_MAX = 1_000_000
"""Maximum number of id ranges of remembered publishes, of all producers of a channel together.
Beyond it, the producers that have been silent for longest keep only their newest publishes."""

SILENT_REMEMBERED = (64, 1)
"""Publishes that a silent producer keeps: the first number, or the second if the total still
exceeds :data:`ALL_REMEMBERED_MAX`."""


class _ProducerMemory(Generic[Ids]):
    """The remembered publishes of one producer."""

    __slots__ = ("at_us", "contents", "forgotten", "recent")

    def __init__(self, at_us: int) -> None:
        self.at_us = at_us
        """Time of the newest publish, in microseconds since 1970."""
        self.contents: dict[int, str] = {}
        """Identities of the contents of publishes, by sequence; only of publishes whose producer
        named one."""
        self.recent: list[tuple[int, Ids]] = []
        """Remembered sequences, ascending, each with the ids that its events got."""
        self.forgotten = -1
        """The highest sequence whose ids are forgotten; -1 if none is."""


class Remembered(Generic[Ids]):
    """Publishes by producer and sequence. All of it is hard state and part of every snapshot."""

    __slots__ = ("_all_max", "_by_name", "_lasting", "_pruned_us", "_size")

    def __init__(self, all_max: int = ALL_REMEMBERED_MAX) -> None:
        self._all_max = all_max
        self._by_name: dict[str, _ProducerMemory[Ids]] = {}
        self._pruned_us = 0
        self._size = 0
        """Number of ranges of ids of all remembered publishes."""
        self._lasting: dict[str, set[str]] = {}
        """Names of producers that belong to pipelines, by user."""

    def __len__(self) -> int:
        return len(self._by_name)

    def stored_as(self, name: str, sequence: int) -> Ids | None:
        """Return the ids that this publish got when it was stored; None if it was never stored.

        Raises ``SequenceTooOld`` if publishes with such old sequences are forgotten, and
        ``DifferentContent`` if the stored publish and ``name`` identify different contents.
        """
        if CONTENT_MARK in name:
            return self._stored_with(*split_content(name), sequence)
        memory = self._by_name.get(name)
        is_new = memory is not None and memory.recent and sequence > memory.recent[-1][0]
        if is_new and MARK not in name:  # the usual case
            return None
        ids = self._stored_as(name, sequence)
        if ids is None and (name_without_owner := plain(name)) != name:
            return self._stored_as(
                name_without_owner, sequence
            )  # stored before the realm had users
        return ids

    def _stored_with(self, name: str, content: str, sequence: int) -> Ids | None:
        """Return the ids of this publish if it was stored with this content or with unknown
        content. Raises the errors of :meth:`stored_as`."""
        ids = self.stored_as(name, sequence)
        if ids is None:
            return None
        memory = self._by_name.get(name) or self._by_name.get(plain(name))
        stored = memory.contents.get(sequence, content) if memory is not None else content
        if stored != content:
            raise DifferentContent(
                f"publish {sequence} of producer {plain(name)} is stored with the content "
                f"{stored}, and its retry has the content {content}; the retry was not stored. "
                f"Continue from the state that was saved last, or use a new producer"
            )
        return ids

    def newest(self, name: str) -> int:
        """Return the highest stored sequence of a producer; -1 if no publish is known.

        A producer that waits for each answer before its next publish has stored all sequences up to
        this one.
        """
        memory = self._by_name.get(name)
        if memory is None:
            return -1
        return memory.recent[-1][0] if memory.recent else memory.forgotten

    def _stored_as(self, name: str, sequence: int) -> Ids | None:
        """Return the ids of a remembered publish. Raises ``SequenceTooOld`` if it may be
        forgotten."""
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
                f"publishes that are remembered; use a new producer"
            )
        return None

    def stored(self, name: str, sequence: int, ids: Ids, at_us: int) -> None:
        """Remember the ids of a stored publish; forget old publishes beyond the limits."""
        content = ""
        if CONTENT_MARK in name:
            name, content = split_content(name)
        memory = self._by_name.get(name)
        if memory is None:
            memory = _ProducerMemory(at_us)
            self._register(name, memory)
            self._make_room(name)
        memory.at_us = at_us
        recent = memory.recent
        if not recent or sequence > recent[-1][0]:
            recent.append((sequence, ids))
        else:
            # A publish that was refused at first may be stored behind later ones.
            insort(recent, (sequence, ids), key=lambda entry: entry[0])
        self._size += _size_of(ids)
        if content:
            memory.contents[sequence] = content
        lasting = name.startswith(LASTING_PREFIX)
        limit = LASTING_REMEMBERED_MAX if lasting else REMEMBERED_MAX
        # The list is cut only at twice the limit, so that few publishes have to shorten it.
        if len(recent) >= 2 * limit:
            self._shorten(memory, limit)
        if self._size > self._all_max:
            self._forget_old(name)
        if at_us - self._pruned_us >= FORGET_AFTER_US // 24:
            # Once an hour only, because it visits every producer.
            self._prune(at_us)

    def _shorten(self, memory: _ProducerMemory[Ids], count: int) -> None:
        """Keep the newest ``count`` publishes of a producer."""
        if len(memory.recent) <= count:
            return
        self._size -= sum(_size_of(ids) for _, ids in memory.recent[:-count])
        memory.forgotten = memory.recent[-count - 1][0]
        del memory.recent[:-count]
        for old in [number for number in memory.contents if number <= memory.forgotten]:
            del memory.contents[old]

    def _forget_old(self, newest: str) -> None:
        """Keep fewer publishes of the producers that have been silent for longest, pipelines
        last."""

        # A pipeline may continue from a checkpoint after months, so its publishes matter longer.
        def order(name: str) -> tuple[bool, int, str]:
            return name.startswith(LASTING_PREFIX), self._by_name[name].at_us, name

        names = sorted(self._by_name.keys() - {newest}, key=order)
        for count in SILENT_REMEMBERED:
            for name in names:
                # Down to 90 % of the limit, so that the next publishes do not have to search again.
                if self._size <= self._all_max * 9 // 10:
                    return
                self._shorten(self._by_name[name], count)

    def lower(self, now_us: int) -> None:
        """Set the times of publishes that are later than ``now_us`` to ``now_us``. The clock was
        ahead in an earlier run, and these publishes would be remembered for too long."""
        self._pruned_us = min(self._pruned_us, now_us)
        for memory in self._by_name.values():
            memory.at_us = min(memory.at_us, now_us)

    def _register(self, name: str, memory: _ProducerMemory[Ids]) -> None:
        """Keep the memory of a producer under its name."""
        self._by_name[name] = memory
        if name.startswith(LASTING_PREFIX):
            self._lasting.setdefault(owner_of(name), set()).add(name)

    def _make_room(self, newest: str) -> None:
        """Bound the number of names, because clients choose them freely; ``newest`` always
        stays."""
        if newest.startswith(LASTING_PREFIX):
            pipelines = self._lasting[owner_of(newest)]
            if len(pipelines) > LASTING_NAMES_MAX:
                self._forget_silent(pipelines - {newest}, 1)
        elif len(self._by_name) > NAMES_MAX + sum(map(len, self._lasting.values())):
            lasting = set().union(*self._lasting.values())
            self._forget_silent(self._by_name.keys() - lasting - {newest}, NAMES_MAX // 10)

    def _forget_silent(self, names: Iterable[str], count: int) -> None:
        """Forget the ``count`` producers of ``names`` that have been silent for longest."""
        by_time = ((self._by_name[name].at_us, name) for name in names)
        for _, name in heapq.nsmallest(count, by_time):
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Drop the memory of a producer."""
        memory = self._by_name.pop(name)
        self._size -= sum(_size_of(ids) for _, ids in memory.recent)
        if name.startswith(LASTING_PREFIX):
            self._lasting[owner_of(name)].discard(name)

    def _prune(self, now_us: int) -> None:
        """Forget the producers that have been silent for too long."""
        self._pruned_us = now_us
        for name, memory in list(self._by_name.items()):
            lasts = name.startswith(LASTING_PREFIX)
            silent_us = now_us - memory.at_us
            if silent_us > (LASTING_FORGET_AFTER_US if lasts else FORGET_AFTER_US):
                self._forget(name)

    def remembered(self) -> Iterator[tuple[str, int, int, tuple[tuple[int, Ids], ...]]]:
        """Yield an entry for each producer: name, highest forgotten sequence, time of the newest
        publish, and the remembered sequences with their ids.

        A publish with an identity of its content has a separate entry, under a name that contains
        the identity.
        """
        for name, memory in self._by_name.items():
            contents = memory.contents
            others = tuple(entry for entry in memory.recent if entry[0] not in contents)
            yield name, memory.forgotten, memory.at_us, others if contents else tuple(memory.recent)
            for sequence, ids in memory.recent if contents else ():
                if sequence in contents:
                    full_name = with_content(name, contents[sequence])
                    yield full_name, -1, memory.at_us, ((sequence, ids),)

    def restore_entry(
        self, name: str, forgotten: int, at_us: int, recent: list[tuple[int, Ids]]
    ) -> None:
        """Restore one entry of :meth:`remembered`."""
        if CONTENT_MARK in name:
            for sequence, ids in recent:
                self.stored(name, sequence, ids, at_us=at_us)
            return
        memory: _ProducerMemory[Ids] = _ProducerMemory(at_us)
        memory.forgotten, memory.recent = forgotten, recent
        self._size += sum(_size_of(ids) for _, ids in recent)
        self._register(name, memory)


def _size_of(ids: Any) -> int:
    """Return the number of ranges in the answer of a publish."""
    return 1 if type(ids) is Span else len(ids)


class Producers(Remembered[Span]):
    """The remembered publishes of one channel."""

    __slots__ = ()

    def state(self) -> tuple[ProducerState, ...]:
        return tuple(ProducerState(*entry) for entry in self.remembered())

    def restore(self, states: tuple[ProducerState, ...]) -> None:
        for state in states:
            recent = [(sequence, Span(*span)) for sequence, span in state.recent]
            self.restore_entry(state.name, state.forgotten, state.at_us, recent=recent)


class JointProducers(Remembered[StoreSpans]):
    """The remembered publishes of a realm that went to several stores in one step."""

    __slots__ = ()
