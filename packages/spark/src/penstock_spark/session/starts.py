"""The start and end of a read as its options give them: for all channels, or for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from penstock_core.vocabulary.choice import Choice
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.names import destination_name

Place = str | int | datetime
"""``earliest``, ``latest``, an event id, or a time: the first event published then or later."""

_WORDS: Final = ("earliest", "latest")


class StartPositions(Struct, frozen=True):
    """A place for each channel that was given one, and the one for all others."""

    otherwise: Place | None = None
    """None: the default of the kind of read."""
    named: Mapping[str, Place] = {}

    def of(self, name: str) -> Place | None:
        return self.named.get(name, self.otherwise)


def places(side: str, texts: Mapping[str, str], choice: Choice) -> StartPositions:
    """Read ``startingOffsets`` and ``startingTimestamp``, or the options for the end.

    ``side`` "ending" reads those for the end. Raises ``InvalidArgument`` naming the option and the
    channel.
    """
    offsets, moment = f"{side}Offsets", f"{side}Timestamp"
    if offsets in texts and moment in texts:
        raise InvalidArgument(f"give {offsets} or {moment}, not both")
    if moment in texts:
        return _places(moment, texts[moment], choice)
    found = _places(offsets, texts.get(offsets), choice)
    if side == "ending" and "earliest" in (found.otherwise, *found.named.values()):
        raise InvalidArgument('endingOffsets is "earliest": there is nothing before it')
    return found


def _places(option: str, text: str | None, choice: Choice) -> StartPositions:
    if text is None:
        return StartPositions()
    if not text.strip().startswith("{"):
        return StartPositions(_place(option, text.strip(), text, choice=choice))
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} is not JSON: {error}") from error
    named = {}
    for key, value in given.items():
        name = destination_name(key)
        if not choice.takes(name):
            raise InvalidArgument(f"{option} names {key}; this reads {choice.text}")
        named[name] = _place(option, value, text, choice=choice)
    return StartPositions(None, named)


def _place(option: str, given: Any, text: str, choice: Choice) -> Place:
    if option.endswith("Timestamp"):
        return _moment(option, given, text)
    if isinstance(given, str):
        if given.lower() in _WORDS:
            return given.lower()
        given = int(given) if given.isdecimal() else None
    if type(given) is int and 0 <= given < 1 << 63:
        return given
    example = next(iter((*choice.names, "orders")))
    raise InvalidArgument(
        f'{option} is {text!r}; it is "earliest", "latest", an event id, or JSON such as '
        f'{{"{example}": 1200}}'
    )


def _moment(option: str, given: Any, text: str) -> datetime:
    try:
        if type(given) is int or (isinstance(given, str) and given.strip().isdecimal()):
            return datetime.fromtimestamp(int(given) / 1_000, UTC)
        moment = datetime.fromisoformat(given.strip())
    except (AttributeError, ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(
            f"{option} is {text!r}; it is milliseconds since 1970, a time such as "
            '2013-01-31T09:30:00Z, or JSON such as {"orders": "2013-01-31T09:30:00Z"}'
        ) from error
    if moment.tzinfo is None:
        raise InvalidArgument(
            f"{option} is {text!r}, a time without a time zone: add one, as in "
            f"{moment.isoformat()}Z for UTC or {moment.isoformat()}+02:00"
        )
    return moment
