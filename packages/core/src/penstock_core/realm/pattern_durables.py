"""Durables over patterns: one of a name on each channel whose name fits (SEM D22)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.state import RealmRules
from penstock_core.durable.durable import Durable
from penstock_core.messages.pattern_durables import PatternDurable, PatternKey
from penstock_core.vocabulary.choice import choice_of, short_choice_of
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableState, durable_attributes
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
    Refused,
)
from penstock_core.vocabulary.names import durable_name


class PatternTable:
    """All durables over patterns of a realm."""

    def __init__(self) -> None:
        self._by_key: dict[PatternKey, PatternDurable] = {}

    def __iter__(self) -> Iterator[PatternDurable]:
        return iter([self._by_key[key] for key in sorted(self._by_key)])

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, made: PatternDurable) -> None:
        self._by_key[made.key] = made

    def remove(self, key: PatternKey) -> None:
        self._by_key.pop(key, None)

    def get(self, pattern: str, name: str) -> PatternDurable:
        """Raises ``NameDoesNotExist``, ``InvalidName``, ``InvalidArgument``."""
        key = choice_of(pattern).text, durable_name(name)
        found = self._by_key.get(key)
        if found is None:
            raise NameDoesNotExist(f"there is no durable {key[1]} over the pattern {key[0]}")
        return found

    def applying_to(self, channel: str, kind: str = "channel") -> list[PatternDurable]:
        """What a store has because of its name, each durable once."""
        found: dict[str, PatternDurable] = {}
        for each in self:
            if each.takes(channel, kind):
                found.setdefault(each.name, each)
        return list(found.values())

    def refuse_removal(self, channel: str, durable: str) -> None:
        """Raises ``IllegalState`` for a durable that belongs to a pattern."""
        for each in self.applying_to(channel):
            if each.name == durable:
                raise IllegalState(
                    f"durable {durable} of {channel} belongs to the pattern {each.pattern}; delete "
                    "it there, which removes it from all its channels"
                )

    def checked(self, made: PatternDurable) -> PatternDurable:
        """``made`` in canonical form.

        Raises ``InvalidArgument`` for what is no pattern, ``NameAlreadyBound`` for one there is,
        also where the name has other attributes over another pattern: on a channel that
        both take it could be only one of them.
        """
        choice = short_choice_of(made.pattern)
        if not choice.patterns:
            raise InvalidArgument(
                f"{choice.text!r} names channels, and no pattern: make the durable on each of them"
            )
        wanted = PatternDurable(
            choice.text,
            durable_name(made.name),
            made.kind,
            selector=made.selector,
            persistent=made.persistent,
            attributes=made.attributes,
        )
        if wanted.key in self._by_key:
            raise NameAlreadyBound(
                f"durable {wanted.name} over the pattern {wanted.pattern} already exists"
            )
        for other in self:
            if other.name == wanted.name and _terms(other) != _terms(wanted):
                raise NameAlreadyBound(
                    f"durable {wanted.name} is over the pattern {other.pattern}, too, with other "
                    "attributes; take the same ones, or another name"
                )
        return wanted


def _terms(made: PatternDurable) -> tuple[object, ...]:
    return made.kind, made.selector, made.persistent, made.attributes


def rehearsed(
    wanted: list[PatternDurable], name: str, definition: Definition, rules: RealmRules
) -> dict[str, Durable]:
    """The durables that a new channel has because of patterns, by name.

    Raises ``InvalidArgument`` for one that cannot be on such a channel.
    """
    channel = ChannelMachine(name, definition, rules)
    for each in wanted:
        try:
            decided = channel.decide(each.command(), 0)
        except Refused as refusal:
            raise InvalidArgument(
                f"durable {each.name} of the pattern {each.pattern} cannot be on {name}: {refusal}"
            ) from refusal
        for fact in decided.facts:
            channel.apply(fact)
    return {each.name: channel.state.durables[each.name] for each in wanted}


def terms_of(durable: Durable | DurableState) -> dict[str, object]:
    """What two durables of a name have to have in common, by the name that users know."""
    if isinstance(durable, DurableState):
        kind, attributes = durable.kind, durable_attributes(durable)
    else:
        kind, attributes = durable.kind.name, durable.attributes
    terms = {"type": kind, "selector": durable.selector, "persistent": durable.persistent}
    return {**terms, **asdict(attributes)}


def refuse_difference(
    made: PatternDurable, channel: str, there: dict[str, object], would: dict[str, object]
) -> None:
    """Raises ``NameAlreadyBound`` where a channel has a durable of the name that is not as the
    pattern's would be."""
    differing = [
        f"{what} is {there[what]!r}, not {would[what]!r}"
        for what in would
        if there[what] != would[what]
    ]
    if differing:
        raise NameAlreadyBound(
            f"{channel} has a durable {made.name} that is another one: {'; '.join(differing)}; "
            "delete it there, or take its attributes or another name"
        )
