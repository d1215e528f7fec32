"""The place of an event before its delivery: both tables of section J of the semantics."""

from __future__ import annotations

from random import Random
from typing import Final, Literal, NamedTuple

import pytest

from packages.server.tests.runtime.lives import Lives, Outlet
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_testing.loop import simulate

Where = Literal["disk", "memory", "nothing"]


class Row(NamedTuple):
    """The durable and subscriber at the publish. Neither can take the event right now."""

    durable: str = ""
    """The type of the durable; empty: no durable."""
    client: Literal["", "client ack", "auto-ack", "synchronous"] = ""
    subscriber: bool = False


KEPT: Final = (
    Row("shared", "client ack"),
    Row("serial", "client ack"),
    Row("shared_queued", "client ack"),
    Row("shared", "auto-ack"),
    Row("serial", "auto-ack"),
    Row("shared_queued", "auto-ack"),
    Row("exclusive", "client ack"),
    Row("priority", "client ack"),
    Row("exclusive", "synchronous"),
    Row("priority", "synchronous"),
    Row("shared", "synchronous"),
    Row("exclusive"),
    Row("priority"),
    Row("shared"),
    Row("serial"),
    Row("shared_queued"),
    Row("shared", "client ack", subscriber=True),
    Row("exclusive", subscriber=True),
)
NOT_KEPT: Final = (
    Row("exclusive", "auto-ack"),
    Row("priority", "auto-ack"),
    Row("exclusive", "auto-ack", subscriber=True),
    Row(subscriber=True),
    Row(),
)
READERS: Final = (Row(), Row("", "client ack"), Row("", "synchronous"))
"""Readers of a queue."""

BY_TYPE: Final[dict[tuple[str, bool], Where]] = {
    ("mixed", True): "disk",
    ("mixed", False): "memory",
    ("persistent", True): "disk",
    ("paged", True): "disk",
    ("reliable", True): "memory",
    ("off_heap", True): "memory",
    ("simple", True): "memory",
    ("transient", True): "nothing",
}
"""The place of a kept event, by type and the event's ``persistent`` flag."""

TYPES: Final = tuple(BY_TYPE)


async def seat(lives: Lives, row: Row, kind: str) -> None:
    """Attach a client that cannot take an event right now."""
    if row.durable:
        await lives.durable("orders", "d", row.durable)
    if row.client:
        await lives.attach(
            "orders",
            "d" if row.durable else "",
            pull=row.client == "synchronous",
            auto_ack=row.client == "auto-ack",
        )
        lives.realm.subscriptions.stall("worker", stalled=True)
    if row.subscriber:
        await lives.realm.subscriptions.subscribe(
            ChannelId(lives.number("orders")), FromEarliest(), Outlet("follower"), credit=0
        )


def place_of_event(lives: Lives, blocks: int) -> Where:
    """Return the place of event 0 after its publish; ``blocks`` was the last block of the journal
    before it."""
    number = lives.number("orders")
    state = lives.realm.directory.channels[number].state
    if 0 not in state.stored or 0 in state.passing:
        assert 0 not in state.stored or 0 in state.volatile
        return "nothing"
    if 0 in state.volatile:
        return "memory"
    assert lives.realm.shard.tail > blocks
    return "disk"


async def publish_before(definition: Definition, row: Row, *, persistent: bool) -> Where:
    """Publish one event, record where it is stored, and verify that by a power cut."""
    lives = Lives()
    async with lives.life():
        await lives.realm.create_channel("orders", definition)
        await seat(lives, row, definition.kind)
        blocks = lives.realm.shard.tail
        await lives.put("orders", Event(b"e", persistent=persistent))
        where = place_of_event(lives, blocks)
        memory = (await lives.realm.describe("1")).off_heap_bytes
        if definition.type == "off_heap":
            assert (memory > 0) == (where == "memory" or row.subscriber or bool(row.durable))
        await lives.conserved()
    async with lives.life():
        state = lives.realm.directory.channels[lives.number("orders")].state
        assert (0 in state.stored) == (where == "disk")
        await lives.conserved()
    return where


@pytest.mark.spec("J2", "J4")
@pytest.mark.parametrize("row", KEPT)
@pytest.mark.parametrize(("type", "persistent"), TYPES)
def test_on_the_jms_engine_the_type_keeps_events_with_interest(
    type: str, persistent: bool, row: Row
) -> None:
    definition = Definition(type=type, engine="jms")

    where = simulate(publish_before(definition, row, persistent=persistent), Random(1))

    assert where == BY_TYPE[type, persistent]


@pytest.mark.slow
@pytest.mark.spec("J2", "J4")
@pytest.mark.parametrize("row", NOT_KEPT)
@pytest.mark.parametrize(("type", "persistent"), TYPES)
def test_on_the_jms_engine_nothing_is_kept_for_subscribers_that_keep_up(
    type: str, persistent: bool, row: Row
) -> None:
    definition = Definition(type=type, engine="jms")

    where = simulate(publish_before(definition, row, persistent=persistent), Random(1))

    assert where == "nothing"


@pytest.mark.spec("J1")
@pytest.mark.parametrize("row", KEPT + NOT_KEPT)
@pytest.mark.parametrize(("type", "persistent"), TYPES)
def test_on_the_default_engine_the_type_alone_decides(
    type: str, persistent: bool, row: Row
) -> None:
    definition = Definition(type=type)

    where = simulate(publish_before(definition, row, persistent=persistent), Random(1))

    assert where == BY_TYPE[type, persistent]


@pytest.mark.spec("J1")
@pytest.mark.parametrize("row", READERS)
@pytest.mark.parametrize(("type", "persistent"), TYPES)
def test_in_a_queue_the_type_alone_decides(type: str, persistent: bool, row: Row) -> None:
    definition = Definition(type=type, kind="queue")

    where = simulate(publish_before(definition, row, persistent=persistent), Random(1))

    assert where == BY_TYPE[type, persistent]
