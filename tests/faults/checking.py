"""What must hold after all that went wrong: pure functions of what was written down and found.

The checks are those of a log and of a queue with a total order of what is known: nothing
acknowledged is lost, nothing is there that nobody tried to publish, nothing twice, in order where
order is promised, and whoever consumes gets all of it, and none again that is confirmed as done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from penstock_core.ids.ids import IdSet
from tests.faults.journals import Published, Received, digest_of
from tests.faults.names import NOT_IDEMPOTENT, parsed

Events = Mapping[int, bytes]
"""What a channel holds, by id."""
NAMED_MAX = 5
"""Events named in a violation; of more, how many."""


class Publishing(Struct):
    """One publisher's row."""

    name: str
    attempted: int
    acknowledged: int
    refused: int
    stored: int
    lost: int
    duplicated: int


class Consuming(Struct):
    """The row of those who share a durable or queue, or of one subscription."""

    name: str
    events: int
    """That there were to be had."""
    received: int
    confirmed: int
    again: int
    """Received once more, because their acknowledgement was not confirmed."""
    missed: int


Violations = list[str]


def some(things: Iterable[object]) -> str:
    """A few of them, and how many there are."""
    listed = list(things)
    shown = ", ".join(map(str, listed[:NAMED_MAX]))
    return shown if len(listed) <= NAMED_MAX else f"{shown}, … ({len(listed)})"


def owners(events: Events, where: str, wrong: Violations) -> dict[str, dict[int, list[int]]]:
    """The ids under which each publisher's numbers are stored, in the order of ids."""
    found: dict[str, dict[int, list[int]]] = defaultdict(dict)
    nobodys = []
    for event_id, data in sorted(events.items()):
        owner = parsed(data)
        if owner is None:
            nobodys.append(event_id)
        else:
            found[owner[0]].setdefault(owner[1], []).append(event_id)
    if nobodys:
        wrong.append(f"{where}: events {some(nobodys)} are not what anybody published")
    return found


def check_publishing(
    published: Published, stored: Mapping[int, list[int]], wrong: Violations
) -> Publishing:
    """One publisher's events against what it was told. ``stored``: ids by its numbers."""
    name = published.name
    lost = [number for number in published.acknowledged if number not in stored]
    twice = [number for number, ids in stored.items() if len(ids) > 1]
    invented = [number for number in stored if number not in published.attempted]
    if lost:
        wrong.append(f"{name}: acknowledged and gone: {some(lost)}")
    if invented:
        wrong.append(f"{name}: stored and never tried: {some(invented)}")
    if name not in NOT_IDEMPOTENT:
        if twice:
            wrong.append(f"{name}: stored twice: {some(twice)}")
        firsts = [ids[0] for _, ids in sorted(stored.items())]
        if any(after <= before for before, after in pairwise(firsts)):
            wrong.append(f"{name}: ids do not follow the order of publishing")
    for told in published.answers:
        ids = [stored.get(told.first + n, [told.first_id + n]) for n in range(told.count)]
        if told.first_id >= 0 and any(told.first_id + n not in ids[n] for n in range(told.count)):
            wrong.append(f"{name}: {told.first} was told id {told.first_id} and has another")
    return Publishing(
        name=name,
        attempted=len(published.attempted),
        acknowledged=len(published.acknowledged),
        refused=published.refused,
        stored=sum(map(len, stored.values())),
        lost=len(lost),
        duplicated=sum(len(ids) - 1 for ids in stored.values()),
    )


def check_durable(
    kind: str, lines: Sequence[Received], events: Events, wrong: Violations
) -> Consuming:
    """All consumers of a durable that has nothing outstanding any more."""
    wrong += _contents(kind, lines, events)
    wrong += _confirmations(kind, lines, is_cumulative=kind in ("exclusive", "priority"))
    if kind in ("exclusive", "priority", "serial"):
        wrong += _first_receipts(kind, lines, sorted(events))
    asked = IdSet()
    for line in lines:
        if line.what == "ack":
            asked.add_all(IdSet.from_ids(sorted(line.ids)))
    missed = [event_id for event_id in events if event_id not in asked]
    if missed:
        wrong.append(f"{kind}: nobody acknowledged {some(missed)}")
    return _row(kind, lines, len(events), missed=len(missed))


def check_subscription(
    name: str, lines: Sequence[Received], events: Events, wrong: Violations
) -> Consuming:
    """Each event once, in order, from the first to the last, over all lives of both sides."""
    wrong += _contents(name, lines, events)
    ids = [event_id for line in lines for event_id in line.ids]
    missed = sorted(events.keys() - set(ids))
    if missed:
        wrong.append(f"{name}: never received {some(missed)}")
    backwards = [after for before, after in pairwise(ids) if after <= before]
    if backwards:
        wrong.append(f"{name}: out of order or again: {some(backwards)}")
    return _row(name, lines, len(events), missed=len(missed))


def check_messages(
    name: str,
    lines: Sequence[Received],
    stored: Mapping[int, list[int]],
    wrong: Violations,
    *,
    is_once: bool,
    tolerated: int = 0,
) -> Consuming:
    """A consumer that is told numbers and no ids: each message in the order they are stored in, and
    where it is to be ``is_once`` none again. ``tolerated``: messages that consumers had begun to
    receive when they were killed. ``stored``: ids by number."""
    numbers = [number for line in lines for number in line.ids]
    firsts = list(dict.fromkeys(numbers))
    unknown = [number for number in firsts if number not in stored]
    if unknown:
        wrong.append(f"{name}: received what the channel does not have: {some(unknown)}")
    missed = sorted(stored.keys() - set(firsts))
    if len(missed) > tolerated:
        wrong.append(f"{name}: never received {some(missed)}")
    again = [number for number, times in Counter(numbers).items() if times > 1]
    if is_once and again:
        wrong.append(f"{name}: received twice: {some(again)}")
    places = [stored[number][0] for number in firsts if number in stored]
    if any(after < before for before, after in pairwise(places)):
        wrong.append(f"{name}: out of order")
    return _row(name, lines, len(stored), missed=len(missed))


def check_queue(
    name: str,
    lines: Sequence[Received],
    publishers: Sequence[Published],
    wrong: Violations,
    *,
    tolerated: int = 0,
) -> tuple[Consuming, dict[str, dict[int, list[int]]]]:
    """All readers of a queue that is empty. ``tolerated``: events taken off by readers that were
    killed before they could write them down. Gives also the ids by publisher and number."""
    wrong += _confirmations(name, lines, is_cumulative=False)
    stored: dict[str, dict[int, list[int]]] = defaultdict(dict)
    owner_of: dict[int, tuple[str, int]] = {}
    for line in lines:
        for event_id, owner in zip(line.ids, line.events, strict=False):
            if owner_of.setdefault(event_id, owner) != owner:
                wrong.append(f"{name}: id {event_id} is {owner_of[event_id]} and {owner}")
            ids = stored[owner[0]].setdefault(owner[1], [])
            if event_id not in ids:
                ids.append(event_id)
    missed = [
        f"{each.name}:{number}"
        for each in publishers
        for number in each.acknowledged
        if number not in stored[each.name]
    ]
    if len(missed) > tolerated:
        wrong.append(f"{name}: acknowledged, and no reader got {some(missed)}")
    for each in publishers:
        if each.name in NOT_IDEMPOTENT:
            continue
        twice = [number for number, ids in stored[each.name].items() if len(ids) > 1]
        if twice:
            wrong.append(f"{name}: {each.name} is there twice: {some(twice)}")
    return _row(name, lines, len(owner_of) + len(missed), missed=len(missed)), stored


def check_together(
    first: Mapping[int, object], second: Mapping[int, object], wrong: Violations
) -> None:
    """What one transaction publishes to two stores is in both or in none."""
    torn = sorted(first.keys() ^ second.keys())
    if torn:
        wrong.append(f"joint: in one of the two stores only: {some(torn)}")


def _contents(name: str, lines: Sequence[Received], events: Events) -> Violations:
    for line in lines:
        if line.what != "got":
            continue
        unknown = [event_id for event_id in line.ids if event_id not in events]
        if unknown:
            return [f"{name}: received what the channel does not have: {some(unknown)}"]
        if digest_of([events[event_id] for event_id in line.ids]) != line.digest:
            return [f"{name}: events {some(line.ids)} came with other contents than are stored"]
    return []


def _confirmations(name: str, lines: Sequence[Received], *, is_cumulative: bool) -> Violations:
    """What is confirmed does not come again, and is not confirmed to two consumers."""
    wrong = []
    done: dict[str, set[int]] = defaultdict(set)
    by: dict[int, str] = {}
    for line in lines:
        if line.what == "got":
            again = done[line.by].intersection(line.ids)
            if again:
                wrong.append(f"{name}: came again after their ack was confirmed: {some(again)}")
        elif line.what == "acked":
            done[line.by].update(line.ids)
            if is_cumulative:
                continue
            other = [each for each in line.ids if by.setdefault(each, line.by) != line.by]
            if other:
                wrong.append(f"{name}: confirmed to two consumers: {some(other)}")
    return wrong


def _first_receipts(name: str, lines: Sequence[Received], ids: Sequence[int]) -> Violations:
    """Whoever gets them, and however often: the first time they come in order, none left out."""
    seen: set[int] = set()
    at = 0
    for line in lines:
        if line.what != "got":
            continue
        for event_id in line.ids:
            if event_id in seen:
                continue
            if at >= len(ids) or event_id != ids[at]:
                expected = ids[at] if at < len(ids) else "nothing"
                return [f"{name}: {event_id} came first when it was the turn of {expected}"]
            seen.add(event_id)
            at += 1
    return []


def _row(name: str, lines: Sequence[Received], events: int, missed: int) -> Consuming:
    received: Counter[int] = Counter()
    confirmed: set[int] = set()
    for line in lines:
        if line.what == "got":
            received.update(line.ids)
        elif line.what == "acked":
            confirmed.update(line.ids)
    again = received.total() - len(received)
    return Consuming(
        name, events, len(received), confirmed=len(confirmed), again=again, missed=missed
    )
