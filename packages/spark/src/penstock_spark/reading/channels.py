"""The channels a read finds now, and how its positions relate to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from penstock.client.sync.sync import Session
from penstock_core.columns.schema.number_columns import EXACT_MAX, shown_columns
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    InvalidSelector,
    NameDoesNotExist,
)
from penstock_spark.connections import ChannelLink, link
from penstock_spark.options import SourceOptions
from penstock_spark.reading.offsets import Position, Positions

Links = dict[str, ChannelLink]
"""Channels by name, in order."""


def links_of(session: Session, options: SourceOptions) -> Links:
    """All that are there and meant. Raises ``NameDoesNotExist`` for one that was named."""
    there: list[str] = []
    if options.choice.patterns:
        there = session.queues.list() if options.choice.queues else session.channels.list()
    found = {}
    for name in options.choice.of(there):
        try:
            found[name] = link(session, options.where_is(name))
        except NameDoesNotExist:
            if name in options.choice.names:
                raise  # otherwise it was deleted a moment ago
    return found


def typed_properties(links: Links, stored: Mapping[str, pa.Schema]) -> set[str]:
    """The properties that are to have a column for integers and one for floats, because some
    integer has no exact double (SEM E10). Only channels with both types are asked for one."""
    schema = ChannelSchema.empty()
    for each in stored.values():
        schema = schema.grown(each)
    joined = {
        column.logical
        for column in shown_columns(schema.properties)
        if len(column.sources) > 1 and _NAME.fullmatch(column.logical)
    }
    if not joined:
        return set()
    return {
        slot.logical
        for name, each in stored.items()
        for slot in ChannelSchema.empty().grown(each).properties.slots
        if slot.logical in joined
        if slot.shape == "int64" and _has_inexact(links[name], slot.logical)
    }


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Properties that a selector can name."""


def _has_inexact(found: ChannelLink, name: str) -> bool:
    selector = f"{name} > {EXACT_MAX} OR {name} < -{EXACT_MAX}"
    try:
        with found.store.browse(selector=selector) as events:
            return any(type(event.properties[name]) is int for event in events)
    except InvalidSelector:  # a word of the language; the tasks tell
        return False


def first_wanted(options: SourceOptions, link: ChannelLink, default: str) -> int:
    """The event id where a read without a checkpoint begins."""
    starting = options.starting.of(link.name)
    if starting is None:
        starting = default
    if isinstance(starting, int):
        return starting
    if starting == "latest":
        return link.end
    if isinstance(starting, str):
        return link.first_stored
    return link.store.first_id_at(starting)


def end_wanted(options: SourceOptions, link: ChannelLink) -> int:
    """The id after the last event that a batch reads."""
    ending, end = options.ending.of(link.name), link.end
    if ending is None or isinstance(ending, str):
        return end
    return min(end, ending if isinstance(ending, int) else link.store.first_id_at(ending))


def placed(
    options: SourceOptions, positions: Positions, links: Mapping[str, ChannelLink]
) -> dict[str, Position]:
    """The positions of a checkpoint for the present channels. New channels begin with their first
    event, and so does, where data may be lost, one that was created again.

    Raises ``IllegalState`` for a name that now means another channel or none, and
    ``InvalidArgument`` for positions of channels that the query does not read.
    """
    same = still_there(options, positions, links)
    return {
        name: same[name] if name in same else Position(found.epoch, found.first_stored)
        for name, found in links.items()
    }


def spans_between(
    options: SourceOptions, links: Mapping[str, ChannelLink], start: Positions, end: Positions
) -> dict[str, Span]:
    """The ids of a micro-batch. Raises as :func:`placed`."""
    return {
        name: Span(
            start[name].event_id if name in start and start[name].epoch == position.epoch else 0,
            position.event_id,
        )
        for name, position in still_there(options, end, links).items()
    }


def still_there(
    options: SourceOptions, positions: Positions, links: Mapping[str, ChannelLink]
) -> Positions:
    """The positions whose channels are there. Raises as :func:`placed`."""
    fails = options.fail_on_data_loss
    strange = [name for name in positions if not options.choice.takes(name)]
    if strange and (fails or len(strange) == len(positions)):
        raise InvalidArgument(
            f"the checkpoint is for channel {', '.join(positions)}, the query reads "
            f"{options.choice.text}; give each query its own checkpoint"
        )
    found = {}
    for name, position in positions.items():
        if name in links and position.epoch == links[name].epoch:
            found[name] = position
        elif fails:
            raise IllegalState(_gone(name, position, is_there=name in links))
    return found


def _gone(name: str, position: Position, *, is_there: bool) -> str:
    remedy = "start with a new checkpoint, or set failOnDataLoss to false"
    if is_there:
        return (
            f"channel {name} is not the one this checkpoint was made with: it was deleted and "
            "created again, the realm's data were exchanged, or its ids restarted with the realm, "
            "as those of simple channels do"
            f"; {remedy} to read the new one"
        )
    return (
        f"channel {name} was deleted, and the checkpoint of this query is at its event "
        f"{position.event_id}"
        f"; {remedy} to go on without it"
    )


def check_not_ahead(options: SourceOptions, at: Positions, there: Mapping[str, Span]) -> None:
    """Raises ``IllegalState`` for a position after events that were never given."""
    for name, position in at.items():
        if there[name].end < position.event_id != options.starting.of(name):
            raise IllegalState(
                f"the checkpoint of this query is at event {position.event_id}, but the next "
                f"event of channel {name} will be {there[name].end}; older data may have been "
                f"restored. Start with a new checkpoint"
            )
