"""The route for the state of a key of a merge channel (SEM K2, K5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock_core.api.reading import ReadKeyState
from penstock_core.columns.schema.moments import parse_moment
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.nesting import check_json_nesting
from penstock_server.frontends.http.finding import asked_of
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import Answer, Id, Moment, QueryParameters

KeyType = Literal["string", "int", "float", "bool", "time"]


class StateQuery(QueryParameters, frozen=True):
    key: Annotated[str, Meta(max_length=4_096, description="Value of the publish key: EUR, 7.")]
    type: Annotated[
        KeyType | None,
        Meta(description="What the key is; left out: 7 is a number, true a bool, EUR a string."),
    ] = None
    as_of: Id | None = None
    """Show the state after this event."""


class StateAnswer(Answer, frozen=True):
    event_id: int
    """Id of the event that made the properties so."""
    published: Moment
    properties: dict[str, Any]
    found_in: str


async def state(call: Call[StateQuery, None]) -> StateAnswer:
    """Show the state of one key of a merge channel, now or after an event that is still its newest.

    States that later events have changed are only in an archive, which ``penstock channel state``
    reads.
    """
    query = call.query
    store, event = await asked_of(
        call, ReadKeyState, lambda now: ReadKeyState(now.channel, _key(query.key, query.type))
    )
    assert event.event_id is not None, "it is stored"
    assert event.published is not None, "it is stored"
    if query.as_of is not None and query.as_of < event.event_id:
        raise InvalidArgument(
            f"the state of {_key(query.key, query.type)!r} as of event {query.as_of} is gone: "
            f"{store.name} has its state as of event {event.event_id}; "
            f"penstock channel state --archive looks into an archive"
        )
    return StateAnswer(
        event_id=event.event_id,
        published=event.published,
        properties=event.properties,
        found_in=store.name,
    )


def _key(text: str, kind: KeyType | None) -> Any:
    """The key's value of the given type. Raises ``InvalidArgument``."""
    if kind is None:
        return _guessed(text)
    try:
        return _TYPES[kind](text)
    except (ValueError, msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        raise InvalidArgument(f"key={text[:80]!r} is not a valid {kind}") from None


def _guessed(text: str) -> Any:
    try:
        check_json_nesting(text)
        value = msgspec.json.decode(text)
    except (InvalidArgument, msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text


def _bool(text: str) -> bool:
    return msgspec.json.decode(text, type=bool)


_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "string": str,
    "int": int,
    "float": float,
    "bool": _bool,
    "time": parse_moment,
}

ROUTES = (
    Route("getKeyState", "GET", "channels/{channel}/state", asks=ReadKeyState, endpoint=state),
)
