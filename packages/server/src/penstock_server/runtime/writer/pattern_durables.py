"""The durables that a new channel has because of patterns, in the block that makes it (SEM D22)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.messages.pattern_durables import PatternDurable
from penstock_core.realm.pattern_durables import refuse_difference, rehearsed, terms_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableState
from penstock_server.runtime.writer.group import Group


def make_own(group: Group, channel_id: int, wanted: Sequence[PatternDurable]) -> None:
    """Give a channel that was just made the durables of its patterns, in the same block. What they
    may be refused for was asked before, by :func:`check_new`."""
    for each in wanted:
        group.do(channel_id, each.command(group.channel(channel_id).state.next_id))


def check_new(
    group: Group, name: str, definition: Definition, already: Sequence[DurableState] = ()
) -> list[PatternDurable]:
    """The durables that a channel will have because of patterns, but those it has ``already``.

    Raises ``InvalidArgument`` where one cannot be on such a channel, and ``NameAlreadyBound`` where
    it has another one of the name.
    """
    directory = group.state.directory
    wanted = directory.patterns.applying_to(name, definition.kind)
    would = rehearsed(wanted, name, definition, rules=directory.rules)
    there = {each.name: each for each in already}
    for each in wanted:
        if each.name in there:
            terms = terms_of(would[each.name])
            refuse_difference(each, name, terms_of(there[each.name]), would=terms)
    return [each for each in wanted if each.name not in there]
