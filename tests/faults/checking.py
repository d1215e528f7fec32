"""Pure functions that compare the records of clients with the stored events.

They are the checks of a log and of a queue: no acknowledged event is lost, no event exists that no
publisher tried to publish, none is stored twice, events are in order where order is promised, and
consumers receive all events, and none again whose acknowledgement was confirmed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from penstock_core.ids.ids import IdSet
from tests.faults.journals import Published, Received, digest_of
from tests.faults.names import NOT_IDEMPOTENT, publisher_of

Events = Mapping[int, bytes]
"""Data of a channel's events, by id."""
NAMED_MAX = 5
"""A violation names this many events; of more it gives the number."""


class Publishing(Struct):
    """The figures of a publisher."""

    name: str
    attempted: int
    acknowledged: int
    refused: int
    stored: int
    lost: int
    duplicated: int


class Consuming(Struct):
    """The figures of the consumers of a durable or queue, or of one subscription."""

    name: str
    events: int
    """Number of available events."""
    received: int
    confirmed: int
    again: int
    """Number of repeated events, whose acknowledgement was not confirmed."""
    missed: int


Violations = list[str]


def some(items: Iterable[object]) -> str:
    """Return a few of the items as text; of a longer list also the number."""
    all_items = list(items)
    named = ", ".join(map(str, all_items[:NAMED_MAX]))
    return named if len(all_items) <= NAMED_MAX else f"{named}, … ({len(all_items)})"


def ids_by_publisher(
    events: Events, store: str, violations: Violations
) -> dict[str, dict[int, list[int]]]:
    """Return the ids of each publisher's numbers, in the order of ids."""
    ids: dict[str, dict[int, list[int]]] = defaultdict(dict)
    unknown = []
    for event_id, data in sorted(events.items()):
        owner = publisher_of(data)
        if owner is None:
            unknown.append(event_id)
        else:
            ids[owner[0]].setdefault(owner[1], []).append(event_id)
    if unknown:
        violations.append(f"{store}: events {some(unknown)} are not what anybody published")
    return ids


def check_publishing(
    published: Published, stored: Mapping[int, list[int]], violations: Violations
) -> Publishing:
    """Check the stored events of a publisher against its answers. ``stored``: ids by its
    numbers."""
    name = published.name
    lost = [number for number in published.acknowledged if number not in stored]
    twice = [number for number, ids in stored.items() if len(ids) > 1]
    invented = [number for number in stored if number not in published.attempted]
    if lost:
        violations.append(f"{name}: acknowledged and gone: {some(lost)}")
    if invented:
        violations.append(f"{name}: stored and never tried: {some(invented)}")
    if name not in NOT_IDEMPOTENT:
        if twice:
            violations.append(f"{name}: stored twice: {some(twice)}")
        firsts = [ids[0] for _, ids in sorted(stored.items())]
        if any(after <= before for before, after in pairwise(firsts)):
            violations.append(f"{name}: ids do not follow the order of publishing")
    for answer in published.answers:
        ids = [stored.get(answer.first + n, [answer.first_id + n]) for n in range(answer.count)]
        if answer.first_id >= 0 and any(
            answer.first_id + n not in ids[n] for n in range(answer.count)
        ):
            violations.append(
                f"{name}: {answer.first} was told id {answer.first_id} and has another"
            )
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
    kind: str, lines: Sequence[Received], events: Events, violations: Violations
) -> Consuming:
    """Check all consumers of a durable that has no outstanding events."""
    violations += _contents(kind, lines, events)
    violations += _confirmations(kind, lines, is_cumulative=kind in ("exclusive", "priority"))
    if kind in ("exclusive", "priority", "serial"):
        violations += _first_receipts(kind, lines, sorted(events))
    requested = IdSet()
    for line in lines:
        if line.what == "ack":
            requested.add_all(IdSet.from_ids(sorted(line.ids)))
    missed = [event_id for event_id in events if event_id not in requested]
    if missed:
        violations.append(f"{kind}: nobody acknowledged {some(missed)}")
    return _row(kind, lines, len(events), missed=len(missed))


def check_subscription(
    name: str, lines: Sequence[Received], events: Events, violations: Violations
) -> Consuming:
    """Check that a subscription received each event once and in order, over all restarts."""
    violations += _contents(name, lines, events)
    ids = [event_id for line in lines for event_id in line.ids]
    missed = sorted(events.keys() - set(ids))
    if missed:
        violations.append(f"{name}: never received {some(missed)}")
    backwards = [after for before, after in pairwise(ids) if after <= before]
    if backwards:
        violations.append(f"{name}: out of order or again: {some(backwards)}")
    return _row(name, lines, len(events), missed=len(missed))


def check_messages(
    name: str,
    lines: Sequence[Received],
    stored: Mapping[int, list[int]],
    violations: Violations,
    *,
    is_once: bool,
    tolerated: int = 0,
) -> Consuming:
    """Check a consumer that receives numbers instead of ids: every message arrived in stored order
    and, if ``is_once``, only once. ``tolerated``: number of messages that killed consumers may have
    received without a record. ``stored``: ids by number."""
    numbers = [number for line in lines for number in line.ids]
    firsts = list(dict.fromkeys(numbers))
    unknown = [number for number in firsts if number not in stored]
    if unknown:
        violations.append(f"{name}: received what the channel does not have: {some(unknown)}")
    missed = sorted(stored.keys() - set(firsts))
    if len(missed) > tolerated:
        violations.append(f"{name}: never received {some(missed)}")
    repeated = [number for number, times in Counter(numbers).items() if times > 1]
    if is_once and repeated:
        violations.append(f"{name}: received twice: {some(repeated)}")
    places = [stored[number][0] for number in firsts if number in stored]
    if any(after < before for before, after in pairwise(places)):
        violations.append(f"{name}: out of order")
    return _row(name, lines, len(stored), missed=len(missed))


def check_queue(
    name: str,
    lines: Sequence[Received],
    publishers: Sequence[Published],
    violations: Violations,
    *,
    tolerated: int = 0,
) -> tuple[Consuming, dict[str, dict[int, list[int]]]]:
    """Check all readers of an empty queue. Also returns the ids by publisher and number.
    ``tolerated``: number of events that killed readers may have taken without a record."""
    violations += _confirmations(name, lines, is_cumulative=False)
    stored: dict[str, dict[int, list[int]]] = defaultdict(dict)
    owner_of: dict[int, tuple[str, int]] = {}
    for line in lines:
        for event_id, owner in zip(line.ids, line.events, strict=False):
            if owner_of.setdefault(event_id, owner) != owner:
                violations.append(f"{name}: id {event_id} is {owner_of[event_id]} and {owner}")
            ids = stored[owner[0]].setdefault(owner[1], [])
            if event_id not in ids:
                ids.append(event_id)
    missed = [
        f"{publisher.name}:{number}"
        for publisher in publishers
        for number in publisher.acknowledged
        if number not in stored[publisher.name]
    ]
    if len(missed) > tolerated:
        violations.append(f"{name}: acknowledged, and no reader got {some(missed)}")
    for publisher in publishers:
        if publisher.name in NOT_IDEMPOTENT:
            continue
        twice = [number for number, ids in stored[publisher.name].items() if len(ids) > 1]
        if twice:
            violations.append(f"{name}: {publisher.name} is there twice: {some(twice)}")
    return _row(name, lines, len(owner_of) + len(missed), missed=len(missed)), stored


def check_together(
    first: Mapping[int, object], second: Mapping[int, object], violations: Violations
) -> None:
    """Check that a transaction over two stores is in both or in neither."""
    torn = sorted(first.keys() ^ second.keys())
    if torn:
        violations.append(f"joint: in one of the two stores only: {some(torn)}")


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
    """Check that no confirmed event is delivered again, or confirmed to two consumers."""
    violations = []
    confirmed: dict[str, set[int]] = defaultdict(set)
    first_consumer: dict[int, str] = {}
    for line in lines:
        if line.what == "got":
            repeated = confirmed[line.consumer].intersection(line.ids)
            if repeated:
                violations.append(
                    f"{name}: came again after their ack was confirmed: {some(repeated)}"
                )
        elif line.what == "acked":
            confirmed[line.consumer].update(line.ids)
            if is_cumulative:
                continue
            doubly_confirmed = [
                event_id
                for event_id in line.ids
                if first_consumer.setdefault(event_id, line.consumer) != line.consumer
            ]
            if doubly_confirmed:
                violations.append(f"{name}: confirmed to two consumers: {some(doubly_confirmed)}")
    return violations


def _first_receipts(name: str, lines: Sequence[Received], ids: Sequence[int]) -> Violations:
    """Check that the first deliveries of all events are in order and complete, whichever consumer
    received them."""
    seen: set[int] = set()
    position = 0
    for line in lines:
        if line.what != "got":
            continue
        for event_id in line.ids:
            if event_id in seen:
                continue
            if position >= len(ids) or event_id != ids[position]:
                expected = ids[position] if position < len(ids) else "nothing"
                return [f"{name}: {event_id} came first when it was the turn of {expected}"]
            seen.add(event_id)
            position += 1
    return []


def _row(name: str, lines: Sequence[Received], events: int, missed: int) -> Consuming:
    received: Counter[int] = Counter()
    confirmed: set[int] = set()
    for line in lines:
        if line.what == "got":
            received.update(line.ids)
        elif line.what == "acked":
            confirmed.update(line.ids)
    repeated = received.total() - len(received)
    return Consuming(
        name, events, len(received), confirmed=len(confirmed), again=repeated, missed=missed
    )
