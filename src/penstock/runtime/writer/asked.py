"""The selectors that are put to events as they are published, and how much that may be."""

from __future__ import annotations

import contextlib

from penstock.columns.selectors import Selector, selector_of, stamped_of, work_of
from penstock.core.bounds import (
    MERGED_SELECTORS_WORK_MAX,
    SELECTORS_WORK_MAX,
    STAMPED_PREDICATES_MAX,
)
from penstock.core.vocabulary.errors import InvalidSelector, LimitReached
from penstock.core.vocabulary.ports import Offload
from penstock.runtime.delivery.selection import PARSED_BESIDE_ABOVE
from penstock.runtime.store.bodies import Asked
from penstock.runtime.store.message_fields import messages_of
from penstock.runtime.store.state import RealmState


def asked_of(state: RealmState, number: int) -> dict[Asked, int]:
    """The selectors that events published on a store are put to, there and wherever joins copy
    them, each with its work."""
    found: dict[Asked, int] = {}
    seen = {number}
    left = [number]
    while left:
        each = left.pop()
        channel = state.channels.get(each)
        if channel is None:
            continue
        texts = _texts(state, each)
        if texts:
            messages = messages_of(channel)
            found.update(((messages, text), work_of(text)) for text in texts)
        for join in state.directory.joins.of(each):
            if join.destination not in seen:
                seen.add(join.destination)
                left.append(join.destination)
    return found


async def parse_stored(state: RealmState, offload: Offload) -> None:
    """Parse the long selectors that are stored, in a thread and before anything is published: a
    short one is parsed where it is asked first."""

    def parse() -> None:
        for number in state.channels:
            for text in _texts(state, number):
                if len(text) <= PARSED_BESIDE_ABOVE:
                    continue
                with contextlib.suppress(InvalidSelector):  # whoever is asked it says so
                    selector_of(text)

    await offload(parse)


def work_where_dead(state: RealmState, number: int) -> int:
    """The work of the selectors that dead events of a store are put to where they go."""
    target = state.directory.dead_event_store_of(number)
    return 0 if target is None else sum(asked_of(state, target).values())


def refuse_costly(state: RealmState, number: int, text: str, selector: Selector | None) -> None:
    """Raises ``LimitReached`` where events published on a store would be asked too much about,
    with one selector more: that of ``text``, which is going to be stored."""
    channel = state.channels.get(number)
    if channel is None or selector is None:
        return
    texts = _texts(state, number)
    if text in texts:
        return
    stamped = frozenset[str]().union(selector.stamped, *map(stamped_of, texts))
    if len(stamped) > STAMPED_PREDICATES_MAX:
        raise LimitReached(
            f"with this selector those of {channel.state.name} would make {len(stamped)} different "
            "comparisons of ids, times, priorities and delivery modes, which the realm sets; "
            f"{STAMPED_PREDICATES_MAX} may be: compare properties instead"
        )
    total = sum(map(work_of, texts)) + selector.work
    merges = channel.state.engine.merges
    most = MERGED_SELECTORS_WORK_MAX if merges else SELECTORS_WORK_MAX
    if total > most:
        raise LimitReached(
            f"with this selector those of {channel.state.name} would make {total} comparisons, "
            f"calculations and wildcards of each event published; {most} may be: make it "
            "simpler, or end durables, readers and joins there that have selectors of their own"
        )
    selector_of.keep(text, selector)  # the writer does not parse it again


def _texts(state: RealmState, number: int) -> set[str]:
    """The selectors on one store alone."""
    texts = state.channels[number].state.selectors
    texts.update(join.selector for join in state.directory.joins.of(number) if join.selector)
    return texts
