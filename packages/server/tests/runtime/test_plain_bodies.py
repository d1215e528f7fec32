"""Bodies of single events that are encoded without Arrow, as those that Arrow encodes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_server.runtime.store import bodies
from penstock_server.runtime.store.bodies import (
    PLAIN_KINDS_MAX,
    PLAIN_NAME_CHARACTERS_MAX,
    PLAIN_PROPERTIES_MAX,
    body_from,
    body_of_plain,
)

EVENT_BYTES_MAX = 1 << 20


@pytest.mark.parametrize(
    "event",
    [
        Event(b""),
        Event(b"x" * 128),
        Event(b"", tag="new"),
        Event(b"\xff\0", tag="é"),
        Event(b"x", properties={"price": 9.5, "sku": "a-1", "count": -3, "open": True}),
        Event(b"", properties={"sku": ""}),
    ],
)
def test_a_plain_event_has_the_body_that_arrow_encodes(event: Event) -> None:
    body_of_plain(event)  # the first event of a kind
    plain, encoded = body_of_plain(event), body_from(body_of([event]))

    assert plain is not None
    assert bytes(plain.buffer) == bytes(encoded.buffer)
    assert plain.schema_bytes == encoded.schema_bytes
    assert plain.names == encoded.names
    assert plain.weight == encoded.weight
    assert plain.digest(EVENT_BYTES_MAX) == encoded.digest(EVENT_BYTES_MAX)


@pytest.mark.parametrize(
    "event",
    [
        Event(b"x", ttl=5),
        Event(b"x", headers={"type": "t"}),
        Event(b"x", properties={"sku": None}),
        Event(b"x", properties={"lines": [1, 2]}),
        Event(b"x" * 40_000),
        Event(b"x", properties={f"p{n}": 1 for n in range(PLAIN_PROPERTIES_MAX + 1)}),
        Event(b"x", properties={"p" * (PLAIN_NAME_CHARACTERS_MAX + 1): 1}),
    ],
)
def test_other_events_are_left_to_arrow(event: Event) -> None:
    assert [body_of_plain(event) for _ in range(2)] == [None, None]


def test_errors_are_reported() -> None:
    reserved = Event(b"x", properties={"$penstock": 1})
    body_of_plain(reserved)

    with pytest.raises(InvalidEvent, match="reserved prefix"):
        body_of_plain(reserved)


def test_a_number_that_no_column_holds_is_left_to_arrow() -> None:
    for _ in range(2):
        body_of_plain(Event(b"x", properties={"number": 1}))

    assert body_of_plain(Event(b"x", properties={"number": 1 << 70})) is None


def test_codecs_are_made_for_repeated_kinds_only_and_are_bounded() -> None:
    def publish(number: int) -> Any:
        return body_of_plain(Event(b"x", properties={f"once{number}": number}))

    before = len(bodies._codecs.by_kind)
    assert [publish(number) for number in range(3 * PLAIN_KINDS_MAX)] == [None] * (
        3 * PLAIN_KINDS_MAX
    )
    assert len(bodies._codecs.by_kind) == before
    assert len(bodies._kinds) <= PLAIN_KINDS_MAX
    for number in range(PLAIN_KINDS_MAX + 10):
        publish(number)
        assert publish(number) is not None
    assert len(bodies._codecs.by_kind) <= PLAIN_KINDS_MAX
