"""Parses the options for the start and end of a read, which apply to all channels or to each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from penstock_core.vocabulary.choice import Choice
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.names import destination_name

StartPosition = str | int | datetime
"""``earliest``, ``latest``, an event id, or a time. A time stands for the first event published at
this time or later."""

_NAMED_POSITIONS: Final = ("earliest", "latest")


class StartPositions(Struct, frozen=True):
    """Positions of named channels, and the position of all other channels."""

    otherwise: StartPosition | None = None
    """Position of channels without an entry in ``named``; None means the default of the read."""
    named: Mapping[str, StartPosition] = {}
    """Positions by name of the channel."""

    def position_of(self, name: str) -> StartPosition | None:
        """Return the position of a channel; None if the options set none."""
        return self.named.get(name, self.otherwise)


def parse_positions(side: str, texts: Mapping[str, str], choice: Choice) -> StartPositions:
    """Parse ``startingOffsets`` and ``startingTimestamp``, or the two options for the end.

    ``side`` is "starting" or "ending". Raises ``InvalidArgument`` for a wrong value, or if both
    options are given.
    """
    offsets, moment = f"{side}Offsets", f"{side}Timestamp"
    if offsets in texts and moment in texts:
        raise InvalidArgument(f"give {offsets} or {moment}, not both")
    if moment in texts:
        return _parse_positions(moment, texts[moment], choice)
    positions = _parse_positions(offsets, texts.get(offsets), choice)
    if side == "ending" and "earliest" in (positions.otherwise, *positions.named.values()):
        raise InvalidArgument(
            'endingOffsets is "earliest", which reads nothing; give "latest" or an event id'
        )
    return positions


def _parse_positions(option: str, text: str | None, choice: Choice) -> StartPositions:
    """Parse one option: a position for all channels, or a JSON object with one for each channel."""
    if text is None:
        return StartPositions()
    if not text.strip().startswith("{"):
        return StartPositions(_parse_position(option, text.strip(), text, choice=choice))
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} is not JSON: {error}") from error
    named = {}
    for key, value in values.items():
        name = destination_name(key)
        if not choice.takes(name):
            raise InvalidArgument(f"{option} names {key}; this reads {choice.text}")
        named[name] = _parse_position(option, value, text, choice=choice)
    return StartPositions(None, named)


def _parse_position(option: str, value: Any, text: str, choice: Choice) -> StartPosition:
    """Parse the position ``value`` from an option with the given text."""
    if option.endswith("Timestamp"):
        return _parse_time(option, value, text)
    if isinstance(value, str):
        if value.lower() in _NAMED_POSITIONS:
            return value.lower()
        value = int(value) if value.isdecimal() else None
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    example = next(iter((*choice.names, "orders")))
    raise InvalidArgument(
        f'{option} is {text!r}; it must be "earliest", "latest", an event id, or JSON such as '
        f'{{"{example}": 1200}}'
    )


def _parse_time(option: str, value: Any, text: str) -> datetime:
    """Parse a time: milliseconds since 1970, or an ISO text with a time zone."""
    try:
        if type(value) is int or (isinstance(value, str) and value.strip().isdecimal()):
            return datetime.fromtimestamp(int(value) / 1_000, UTC)
        moment = datetime.fromisoformat(value.strip())
    except (AttributeError, ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(
            f"{option} is {text!r}; it must be milliseconds since 1970, a time such as "
            '2013-01-31T09:30:00Z, or JSON such as {"orders": "2013-01-31T09:30:00Z"}'
        ) from error
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{option} is {text!r}, a time without a time zone: add one, as in "
            f"{moment.isoformat()}Z for UTC or {moment.isoformat()}+02:00"
        )
    return moment
