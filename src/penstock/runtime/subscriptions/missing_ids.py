"""Why ids of a channel have no event any more."""

from __future__ import annotations

from typing import Final

from penstock.api.channels import Missing
from penstock.core.ids.ids import Span
from penstock.runtime.writer.group import Group
from penstock.runtime.writer.shard import Shard

MISSING_SPANS_MAX: Final = 100
"""Ranges told of each cause."""


async def missing(shard: Shard, number: int, span: Span) -> tuple[Missing, ...]:
    """Which ids of ``span`` have no event any more, by cause."""

    def look(group: Group) -> tuple[Missing, ...]:
        state = group.channel(number).state
        group.sweep(number)
        given = Span(state.definition.start_event_id, state.next_id)
        found = state.departures.missing(span, given, state.stored)
        return tuple(
            Missing(cause, len(ids), ids.spans[:MISSING_SPANS_MAX])
            for cause, ids in sorted(found.items())
        )

    found: tuple[Missing, ...] = await shard.act(look, sweeps=(number,))
    return found
