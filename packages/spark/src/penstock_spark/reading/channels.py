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
"""The channels of a read by name, in the order of the options."""


def links_of(session: Session, options: SourceOptions) -> Links:
    """Return the channels or queues that ``options`` name or match by a pattern.

    Raises ``NameDoesNotExist`` if a named one does not exist. A pattern may match none.
    """
    existing: list[str] = []
    if options.choice.patterns:
        existing = session.queues.list() if options.choice.queues else session.channels.list()
    links = {}
    for name in options.choice.select(existing):
        try:
            links[name] = link(session, options.where_is(name))
        except NameDoesNotExist:
            if name in options.choice.names:
                raise  # a channel that a pattern matched was deleted since it was listed
    return links


def typed_properties(links: Links, stored: Mapping[str, pa.Schema]) -> set[str]:
    """Return the properties that need separate columns for integers and floats (SEM E10).

    These are properties with both types and with an integer that a double cannot represent exactly.
    ``stored`` has the schema of each channel.
    """
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
"""Matches names of properties that a selector can test."""


def _has_inexact_integer(link: ChannelLink, property_name: str) -> bool:
    """Return whether a stored event has an integer in this property beyond the exact doubles."""
    selector = f"{property_name} > {EXACT_MAX} OR {property_name} < -{EXACT_MAX}"
    try:
        with link.store.browse(selector=selector) as events:
            # The selector also matches large floats, which are doubles anyway.
            return any(type(event.properties[property_name]) is int for event in events)
    except InvalidSelector:  # the name is a keyword of selectors; the tasks report inexact integers
        return False


def first_id_to_read(options: SourceOptions, link: ChannelLink, default: str) -> int:
    """Return the id of the first event that a read without a checkpoint reads.

    ``default`` is "earliest" or "latest"; it applies if the options set no start.
    """
    starting = options.starting.position_of(link.name)
    if starting is None:
        starting = default
    if isinstance(starting, int):
        return starting
    if starting == "latest":
        return link.end
    if isinstance(starting, str):  # "earliest"
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
    """Return the position of each existing channel, from the positions of a checkpoint.

    New channels begin at their first stored event. So do recreated channels if ``failOnDataLoss``
    is false.

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
    """Return the ids of the micro-batch from ``start`` to ``end``, by channel.

    A channel that is missing in ``start`` begins at id 0. Raises the errors of
    :func:`resolve_positions`.
    """
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
    """Return those of the ``positions`` whose channels exist with the same epoch.

    Raises the errors of :func:`resolve_positions`.
    """
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
    """Return the error text for a channel that was recreated (``exists``) or deleted."""
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
    """Raise ``IllegalState`` if a position is beyond the end of its channel.

    ``extents`` has the ids of the stored events of each channel.
    """
    for name, position in positions.items():
        # A start that the options set may be in the future; the stream then waits for that id.
        if extents[name].end < position.event_id != options.starting.position_of(name):
            raise IllegalState(
                f"the checkpoint of this query is at event {position.event_id}, but the next "
                f"event of channel {name} will be {extents[name].end}; older data may have been "
                f"restored. Start with a new checkpoint"
            )
