"""Creates the durables that a new channel gets from patterns, in the same block (SEM D22)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.messages.pattern_durables import PatternDurable
from penstock_core.realm.pattern_durables import refuse_difference, rehearsed, terms_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableState
from penstock_server.runtime.writer.group import Group


def make_own(group: Group, channel_id: int, durables: Sequence[PatternDurable]) -> None:
    """Create the durables of patterns on a new channel, in the block that creates the channel. The
    channel cannot refuse them, because the caller has already called :func:`check_new`."""
    for durable in durables:
        group.do(channel_id, durable.command(group.channel(channel_id).state.next_id))


def check_new(
    group: Group, name: str, definition: Definition, already: Sequence[DurableState] = ()
) -> list[PatternDurable]:
    """Return the durables that a channel gets from patterns, without those that it has ``already``.

    Raises ``InvalidArgument`` if the channel cannot have one of them, and ``NameAlreadyBound`` if
    the channel has a different durable of that name.
    """
    directory = group.state.directory
    durables = directory.patterns.applying_to(name, definition.kind)
    planned = rehearsed(durables, name, definition, rules=directory.rules)
    existing = {state.name: state for state in already}
    for durable in durables:
        if durable.name in existing:
            terms = terms_of(planned[durable.name])
            refuse_difference(durable, name, terms_of(existing[durable.name]), would=terms)
    return [durable for durable in durables if durable.name not in existing]
