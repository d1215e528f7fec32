"""Resolves the channels of a read, and matches positions of a checkpoint with them."""

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
    """Return the existing channels or queues of a read. Raises ``NameDoesNotExist`` if one that the
    options name does not exist; patterns may match none."""
    existing: list[str] = []
    if options.choice.patterns:
        existing = session.queues.list() if options.choice.queues else session.channels.list()
    links = {}
    for name in options.choice.select(existing):
        try:
            links[name] = link(session, options.where_is(name))
        except NameDoesNotExist:
            if name in options.choice.names:
                raise  # otherwise it was deleted a moment ago
    return links


def typed_properties(links: Links, stored: Mapping[str, pa.Schema]) -> set[str]:
    """Return the properties that need separate columns for integers and floats, because some
    integer has no exact double (SEM E10). Only channels that store both types are searched."""
    joined_schema = ChannelSchema.empty()
    for schema_of_channel in stored.values():
        joined_schema = joined_schema.grown(schema_of_channel)
    joined_names = {
        column.logical
        for column in shown_columns(joined_schema.properties)
        if len(column.sources) > 1 and _NAME.fullmatch(column.logical)
    }
    if not joined_names:
        return set()
    return {
        slot.logical
        for name, schema_of_channel in stored.items()
        for slot in ChannelSchema.empty().grown(schema_of_channel).properties.slots
        if slot.logical in joined_names
        if slot.shape == "int64" and _has_inexact_integer(links[name], slot.logical)
    }


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Properties that a selector can name."""


def _has_inexact_integer(link: ChannelLink, property_name: str) -> bool:
    selector = f"{property_name} > {EXACT_MAX} OR {property_name} < -{EXACT_MAX}"
    try:
        with link.store.browse(selector=selector) as events:
            return any(type(event.properties[property_name]) is int for event in events)
    except InvalidSelector:  # the name is a keyword of selectors; the tasks report inexact integers
        return False


def first_id_to_read(options: SourceOptions, link: ChannelLink, default: str) -> int:
    """Return the event id where a read without a checkpoint begins."""
    starting = options.starting.position_of(link.name)
    if starting is None:
        starting = default
    if isinstance(starting, int):
        return starting
    if starting == "latest":
        return link.end
    if isinstance(starting, str):
        return link.first_stored
    return link.store.first_id_at(starting)


def end_id_to_read(options: SourceOptions, link: ChannelLink) -> int:
    """Return the id after the last event that a batch reads."""
    ending, end = options.ending.position_of(link.name), link.end
    if ending is None or isinstance(ending, str):
        return end
    return min(end, ending if isinstance(ending, int) else link.store.first_id_at(ending))


def resolve_positions(
    options: SourceOptions, positions: Positions, links: Mapping[str, ChannelLink]
) -> dict[str, Position]:
    """Return the positions of a checkpoint for the present channels.

    New channels begin at their first event; so do recreated channels if data may be lost.

    Raises ``IllegalState`` for a channel that was deleted or recreated, and ``InvalidArgument`` for
    positions of channels that the query does not read.
    """
    matching = matching_positions(options, positions, links)
    return {
        name: matching[name] if name in matching else Position(link.epoch, link.first_stored)
        for name, link in links.items()
    }


def spans_between(
    options: SourceOptions, links: Mapping[str, ChannelLink], start: Positions, end: Positions
) -> dict[str, Span]:
    """Return the ids of a micro-batch by channel. Raises as :func:`resolve_positions`."""
    return {
        name: Span(
            start[name].event_id if name in start and start[name].epoch == position.epoch else 0,
            position.event_id,
        )
        for name, position in matching_positions(options, end, links).items()
    }


def matching_positions(
    options: SourceOptions, positions: Positions, links: Mapping[str, ChannelLink]
) -> Positions:
    """Return the positions whose channels exist with the same epoch. Raises as
    :func:`resolve_positions`."""
    fails_on_loss = options.fail_on_data_loss
    foreign_names = [name for name in positions if not options.choice.takes(name)]
    if foreign_names and (fails_on_loss or len(foreign_names) == len(positions)):
        raise InvalidArgument(
            f"the checkpoint is for channel {', '.join(positions)}, the query reads "
            f"{options.choice.text}; give each query its own checkpoint"
        )
    matching = {}
    for name, position in positions.items():
        if name in links and position.epoch == links[name].epoch:
            matching[name] = position
        elif fails_on_loss:
            raise IllegalState(_replaced_or_deleted(name, position, exists=name in links))
    return matching


def _replaced_or_deleted(name: str, position: Position, *, exists: bool) -> str:
    remedy = "start with a new checkpoint, or set failOnDataLoss to false"
    if exists:
        return (
            f"channel {name} is not the channel of this checkpoint: it was deleted and "
            "created again, the realm's data were exchanged, or its ids restarted with the realm, "
            "as those of simple channels do"
            f"; {remedy} to read the new one"
        )
    return (
        f"channel {name} was deleted, and the checkpoint of this query is at its event "
        f"{position.event_id}"
        f"; {remedy} to continue without it"
    )


def check_not_ahead(
    options: SourceOptions, positions: Positions, extents: Mapping[str, Span]
) -> None:
    """Raise ``IllegalState`` for a position beyond the end of its channel."""
    for name, position in positions.items():
        if extents[name].end < position.event_id != options.starting.position_of(name):
            raise IllegalState(
                f"the checkpoint of this query is at event {position.event_id}, but the next "
                f"event of channel {name} will be {extents[name].end}; older data may have been "
                f"restored. Start with a new checkpoint"
            )
