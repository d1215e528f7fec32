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
from penstock_server.frontends.http.finding import ask_store
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import Answer, Id, Moment, QueryParameters

KeyType = Literal["string", "int", "float", "bool", "time"]


class StateQuery(QueryParameters, frozen=True):
    key: Annotated[
        str, Meta(max_length=4_096, description="Value of the publish key, such as EUR or 7.")
    ]
    type: Annotated[
        KeyType | None,
        Meta(
            description="Type of the key. By default 7 is a number, true a bool and EUR a string."
        ),
    ] = None
    as_of: Id | None = None
    """Show the state right after this event."""


class StateAnswer(Answer, frozen=True):
    event_id: int
    """Id of the last event that changed the properties."""
    published: Moment
    properties: dict[str, Any]
    found_in: str


async def state(call: Call[StateQuery, None]) -> StateAnswer:
    """Show the state of one key of a merge channel, now or right after an earlier event.

    The realm has only the latest state of a key. To read a state that later events have changed,
    use ``penstock channel state`` with an archive.
    """
    query = call.query
    store, event = await ask_store(
        call, ReadKeyState, lambda now: ReadKeyState(now.channel, _key(query.key, query.type))
    )
    assert event.event_id is not None, "the event is stored"
    assert event.published is not None, "the event is stored"
    if query.as_of is not None and query.as_of < event.event_id:
        raise InvalidArgument(
            f"the state of {_key(query.key, query.type)!r} as of event {query.as_of} is no longer "
            f"stored: {store.name} has its state as of event {event.event_id}; read older states "
            f"with penstock channel state --archive"
        )
    return StateAnswer(
        event_id=event.event_id,
        published=event.published,
        properties=event.properties,
        found_in=store.name,
    )


def _key(text: str, kind: KeyType | None) -> Any:
    """Return the value of the key in its type. Raises ``InvalidArgument`` if it does not fit."""
    if kind is None:
        return inferred(text)
    try:
        return _TYPES[kind](text)
    except (ValueError, msgspec.ValidationError, msgspec.DecodeError, RecursionError):
        raise InvalidArgument(f"key={text[:80]!r} is not a valid {kind}") from None


def inferred(text: str) -> Any:
    """Return the bool or number that the text is in JSON; otherwise the text."""
    try:
        # Deep nesting would exhaust the stack of the decoder.
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
