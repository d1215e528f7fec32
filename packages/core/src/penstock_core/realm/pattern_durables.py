"""Durables over patterns: a durable on each channel whose name matches (SEM D22)."""

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
        # Sorted, so that the order does not depend on when the durables were created.
        return iter([self._by_key[key] for key in sorted(self._by_key)])

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, durable: PatternDurable) -> None:
        self._by_key[durable.key] = durable

    def remove(self, key: PatternKey) -> None:
        self._by_key.pop(key, None)

    def get(self, pattern: str, name: str) -> PatternDurable:
        """Return a durable over a pattern. Raises ``NameDoesNotExist``, ``InvalidName``,
        ``InvalidArgument``."""
        key = choice_of(pattern).text, durable_name(name)
        durable = self._by_key.get(key)
        if durable is None:
            raise NameDoesNotExist(f"there is no durable {key[1]} over the pattern {key[0]}")
        return durable

    def applying_to(self, channel: str, kind: str = "channel") -> list[PatternDurable]:
        """Return the durables over patterns that match a store, each name once."""
        # Several patterns may match, but then their durables of one name have the same properties.
        by_name: dict[str, PatternDurable] = {}
        for durable in self:
            if durable.takes(channel, kind):
                by_name.setdefault(durable.name, durable)
        return list(by_name.values())

    def refuse_removal(self, channel: str, durable: str) -> None:
        """Raise ``IllegalState`` for a durable that belongs to a pattern."""
        for pattern_durable in self.applying_to(channel):
            if pattern_durable.name == durable:
                raise IllegalState(
                    f"durable {durable} of {channel} belongs to the pattern "
                    f"{pattern_durable.pattern}; delete it there, which removes it from all "
                    "its channels"
                )

    def checked(self, requested: PatternDurable) -> PatternDurable:
        """Return ``requested`` in canonical form.

        Raises ``InvalidArgument`` if it has no pattern. Raises ``NameAlreadyBound`` if it exists,
        or if its name has other attributes over another pattern, because a channel that matches
        both patterns can have only one durable with this name.
        """
        choice = short_choice_of(requested.pattern)
        if not choice.patterns:
            raise InvalidArgument(
                f"{choice.text!r} names channels and is not a pattern; create the durable on each "
                "of them"
            )
        canonical = PatternDurable(
            choice.text,
            durable_name(requested.name),
            requested.kind,
            selector=requested.selector,
            persistent=requested.persistent,
            attributes=requested.attributes,
        )
        if canonical.key in self._by_key:
            raise NameAlreadyBound(
                f"durable {canonical.name} over the pattern {canonical.pattern} already exists"
            )
        for existing in self:
            if existing.name == canonical.name and _shared_properties(
                existing
            ) != _shared_properties(canonical):
                raise NameAlreadyBound(
                    f"durable {canonical.name} over the pattern {existing.pattern} has other "
                    "attributes; use the same attributes, or another name"
                )
        return canonical


def _shared_properties(durable: PatternDurable) -> tuple[object, ...]:
    """Return the properties that pattern durables with one name must share."""
    return durable.kind, durable.selector, durable.persistent, durable.attributes


def rehearsed(
    wanted: list[PatternDurable], name: str, definition: Definition, rules: RealmRules
) -> dict[str, Durable]:
    """Return the durables that a new channel gets because of patterns, by name.

    Raises ``InvalidArgument`` for a durable that is not possible on such a channel.
    """
    # The channel exists only here, to find out whether the durables are possible together.
    channel = ChannelMachine(name, definition, rules)
    for durable in wanted:
        try:
            decided = channel.decide(durable.command(), 0)
        except Refused as refusal:
            raise InvalidArgument(
                f"durable {durable.name} of the pattern {durable.pattern} cannot be on {name}: "
                f"{refusal}"
            ) from refusal
        for fact in decided.facts:
            channel.apply(fact)
    return {durable.name: channel.state.durables[durable.name] for durable in wanted}


def terms_of(durable: Durable | DurableState) -> dict[str, object]:
    """Return the properties that two durables with one name must share, by their public names."""
    if isinstance(durable, DurableState):
        kind, attributes = durable.kind, durable_attributes(durable)
    else:
        kind, attributes = durable.kind.name, durable.attributes
    terms = {"type": kind, "selector": durable.selector, "persistent": durable.persistent}
    return {**terms, **asdict(attributes)}


def refuse_difference(
    made: PatternDurable, channel: str, existing: dict[str, object], would: dict[str, object]
) -> None:
    """Raise ``NameAlreadyBound`` if the existing durable of a channel has other properties than the
    durable that a pattern would create under the same name."""
    differing = [
        f"{name} is {existing[name]!r}, not {would[name]!r}"
        for name in would
        if existing[name] != would[name]
    ]
    if differing:
        raise NameAlreadyBound(
            f"{channel} has a durable {made.name} with other attributes: {'; '.join(differing)}; "
            "delete it there, or use its attributes or another name"
        )
