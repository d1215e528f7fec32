"""Single plain messages have the same bytes, digests and readings with and without Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.columns.events.single_event import ROW_BYTES_MAX
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, schema_bytes, schema_from
from penstock_core.columns.selectors import Selector, SelectorIndex
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.messages import (
    ALL_TOPICS,
    GatheredTogether,
    Received,
    body_of_messages,
    body_of_plain,
    messages_in,
    messages_of,
    plain_packet,
)
from penstock_mqtt.plain_events import SCHEMA, single_event_of
from penstock_mqtt.wire.packets import PublishPacket
from penstock_mqtt.wire.plain_messages import PlainMessage
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.tail_batch import TailBatch

EVENT_BYTES_MAX = 1 << 20

TEXTS = st.text(max_size=40)
PLAIN = st.tuples(TEXTS, st.binary(max_size=60), st.integers(0, 65_535))


class Publication:
    """The publisher's side of messages that no test stores."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id

    def stored_together(self, messages: Sequence[PlainMessage]) -> None:
        raise NotImplementedError

    def stored(self, packet: PublishPacket) -> None:
        raise NotImplementedError

    def not_stored(self, packet: PublishPacket, error: PenstockError) -> None:
        raise NotImplementedError


def body_of(message: PlainMessage, client_id: str) -> Body:
    body = body_of_plain([GatheredTogether(Publication(client_id), [message])])
    assert body is not None
    return body


def arrow_body_of(message: PlainMessage, client_id: str) -> Body:
    topic = message[0]
    return body_from(body_of_messages([Received(topic, plain_packet(*message), client_id)]))


def tail_batch_of(body: Body) -> TailBatch:
    schema = schema_from(body.schema_bytes)
    return TailBatch.published(
        body, Span(7, 7 + body.rows), 1_000, schema_id=1, schema=schema, publisher="ada@host"
    )


def outgoing(body: Body) -> OutgoingBatch:
    return OutgoingBatch((Span(7, 7 + body.rows),), tail_batch=tail_batch_of(body))


@given(PLAIN, TEXTS)
def test_a_single_message_has_the_bytes_and_the_digest_of_arrow(
    message: PlainMessage, client_id: str
) -> None:
    single, by_arrow = body_of(message, client_id), arrow_body_of(message, client_id)
    assert single.parsed is None
    assert by_arrow.parsed is not None
    assert bytes(single.buffer) == bytes(by_arrow.buffer)
    assert single.schema_bytes == by_arrow.schema_bytes
    assert single.names == by_arrow.names
    assert single.digest(EVENT_BYTES_MAX) == by_arrow.digest(EVENT_BYTES_MAX)
    assert (single.rows, single.weight) == (by_arrow.rows, by_arrow.weight)
    assert single.batch.equals(by_arrow.batch)
    single.batch.validate(full=True)


@given(PLAIN, TEXTS)
def test_a_single_message_is_read_from_its_bytes_as_from_its_columns(
    message: PlainMessage, client_id: str
) -> None:
    body = body_of(message, client_id)
    rows = outgoing(body)
    read = messages_in(rows)
    assert rows.tail_batch is not None
    assert rows.tail_batch._batch is None, "the message was read without Arrow"
    assert read == messages_of(rows.batch)


@given(PLAIN, TEXTS, TEXTS)
def test_selectors_of_a_topic_are_found_without_arrow(
    message: PlainMessage, client_id: str, other: str
) -> None:
    body, by_arrow = body_of(message, client_id), arrow_body_of(message, client_id)
    index = SelectorIndex(value_cost=0.0)
    for topic in {message[0], other}:
        quoted = topic.replace("'", "''")
        text = f"topic = '{quoted}'"
        index.add(text, Selector(text))
    candidates = body.candidates_in(index, None)

    assert candidates == by_arrow.candidates_in(index, None)
    assert (body.value_of("topic"), body.value_of("application_id")) == (message[0], None)
    assert body.parsed is None


@given(PLAIN, TEXTS, st.data())
def test_changed_bytes_are_read_as_arrow_reads_them_or_not_at_all(
    message: PlainMessage, client_id: str, data: st.DataObject
) -> None:
    original = body_of(message, client_id)
    changed = bytearray(original.buffer)
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    schema = schema_from(original.schema_bytes)
    tail_batch = TailBatch(Span(7, 8), 1_000, 1, schema=schema, body=bytes(changed))
    event = single_event_of(tail_batch)
    if event is not None:
        batch = batch_from(bytes(changed), schema)
        batch.validate(full=True)
        (row,) = batch.to_pylist()
        assert row["data"] == event.payload
        assert row["properties"] == {"topic": event.topic}
        assert row["headers"] == {"application_id": event.client_id}
        assert row.get("persistent", True) == event.persists


def test_an_event_with_nulls_or_of_another_schema_is_read_by_arrow() -> None:
    nulls = pa.RecordBatch.from_pylist(
        [{"data": b"x", "properties": {"topic": "a"}, "headers": {"application_id": None}}],
        schema=SCHEMA,
    )
    with_tag = nulls.append_column("tag", pa.array(["t"]))
    for batch in (nulls, with_tag):
        body = Body(bytes(batch_bytes(batch)), batch, schema_bytes(batch.schema))
        rows = outgoing(body)
        assert rows.tail_batch is not None
        assert single_event_of(rows.tail_batch) is None
        assert [message and message.topic for message in messages_in(rows, ALL_TOPICS)] == ["a"]


def test_several_events_and_large_ones_are_read_by_arrow() -> None:
    publication = Publication("c")
    several = body_of_plain([GatheredTogether(publication, [("a", b"x", 1), ("b", b"y", 2)])])
    large = body_of(("a", bytes(ROW_BYTES_MAX), 1), "c")
    for body, topics in ((several, ["a", "b"]), (large, ["a"])):
        assert body is not None
        rows = outgoing(body)
        assert rows.tail_batch is not None
        assert body.parsed is not None
        assert single_event_of(rows.tail_batch) is None
        assert [message and message.topic for message in messages_in(rows)] == topics
