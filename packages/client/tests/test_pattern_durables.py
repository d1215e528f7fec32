"""Durables over patterns: made on each channel that fits, also on those made later."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.client.copies.backup import restore
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import (
    AccessDenied,
    IllegalState,
    InvalidArgument,
    InvalidSelector,
    NameAlreadyBound,
    NameDoesNotExist,
)

WAIT_S = 30.0


def outstanding(session: Session, channel: str, name: str = "billing") -> int:
    return session.channels.get(channel).durables.get(name).info().outstanding


def names_on(session: Session, channel: str) -> list[str]:
    return [durable.name for durable in session.channels.get(channel).durables.list()]


@pytest.mark.spec("D22")
def test_each_channel_of_a_pattern_has_the_durable_also_one_made_later(session: Session) -> None:
    for name in ("orders/eu", "trades"):
        session.channels.create(name).publish(b"")
    made = session.durables.create("orders/*", "billing", type="serial", ack_timeout="30s")
    assert (made.pattern, made.name, made.type, made.channels) == (
        "orders/*",
        "billing",
        "serial",
        1,
    )
    later = session.channels.create("orders/us")
    later.publish(b"")

    assert outstanding(session, "orders/eu") == 1
    assert outstanding(session, "orders/us") == 1
    assert names_on(session, "trades") == []
    info = later.durables.get("billing").info()
    assert (info.type, info.ack_timeout) == ("serial", 30_000)
    assert [durable.channels for durable in session.durables.list()] == [2]


@pytest.mark.spec("D22")
@pytest.mark.parametrize(
    ("start", "selector", "expected"),
    [("latest", "", 0), ("earliest", "n > 1", 2), (3, "", 1), ("earliest", "", 4)],
)
def test_a_start_and_a_selector_are_for_the_channels_there_are(
    session: Session, start: str | int, selector: str, expected: int
) -> None:
    channel = session.channels.create("a/1")
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(4)])
    session.durables.create("a/*", "billing", start=start, selector=selector)  # type: ignore[arg-type]  # of a table
    later = session.channels.create("a/2")
    later.publish_many([penstock.Event(properties={"n": n}) for n in range(4)])

    assert outstanding(session, "a/1") == expected
    assert outstanding(session, "a/2") == (2 if selector else 4)


@pytest.mark.spec("D22")
def test_a_subscription_of_a_pattern_consumes_the_durable_of_the_pattern(session: Session) -> None:
    session.durables.create("a/*", "billing")
    with session.subscribe("a/*", durable="billing") as subscription:
        session.channels.create("a/1").publish(b"1")
        session.channels.create("a/2").publish(b"2")
        delivered: set[tuple[str, bytes]] = set()
        while len(delivered) < 2:
            batch = subscription.next_batch(WAIT_S)
            assert batch is not None
            delivered |= {(event.channel, event.data) for event in batch}
            batch.ack()

        session.durables.delete("a/*", "billing")
        assert subscription.next_batch(0.2) is None
        assert subscription.channels == []
    assert delivered == {("a/1", b"1"), ("a/2", b"2")}


@pytest.mark.spec("D22")
def test_ending_it_removes_what_no_other_pattern_gives(session: Session) -> None:
    for name in ("a/1", "a/2", "b/1"):
        session.channels.create(name)
    session.durables.create("a/*", "billing")
    session.durables.create("*/1", "billing")
    with pytest.raises(IllegalState, match="belongs to the pattern"):
        session.channels.get("a/1").durables.delete("billing")

    session.durables.delete("a/*", "billing")

    assert [names_on(session, name) for name in ("a/1", "a/2", "b/1")] == [
        ["billing"],
        [],
        ["billing"],
    ]
    session.durables.delete("*/1", "billing")
    assert session.durables.list() == []
    assert names_on(session, "a/1") == []
    with pytest.raises(NameDoesNotExist, match=r"no durable billing over the pattern \*/1"):
        session.durables.delete("*/1", "billing")


@pytest.mark.spec("D22")
def test_a_channel_with_another_durable_of_the_name_refuses_and_nothing_is_kept(
    session: Session,
) -> None:
    session.channels.create("a/1")
    session.channels.create("a/2").durables.create("billing", type="serial")

    with pytest.raises(
        NameAlreadyBound, match="a/2 has a durable billing with other attributes: typ"
    ):
        session.durables.create("a/*", "billing")

    assert names_on(session, "a/1") == []
    assert session.durables.list() == []
    same = session.durables.create("a/*", "billing", type="serial")
    assert same.channels == 2
    with pytest.raises(NameAlreadyBound, match="has other attributes"):
        session.durables.create("b/*", "billing")


@pytest.mark.spec("D22")
def test_a_channel_that_cannot_have_it_is_refused_with_the_reason(session: Session) -> None:
    session.channels.create("dead")
    session.durables.create("a/*", "billing", max_deliveries=3)

    with pytest.raises(InvalidArgument, match=r"billing of the pattern a/\* cannot be on a/1"):
        session.channels.create("a/1")

    assert session.channels.list() == ["dead"]
    session.channels.create("a/1", dead_event_store="dead")
    assert names_on(session, "a/1") == ["billing"]
    session.queues.create("a/2")
    with pytest.raises(InvalidArgument, match="cannot be on dead"):
        session.durables.create("de*", "strict", max_deliveries=3)


@pytest.mark.spec("D22")
def test_what_no_durable_may_be_is_refused_without_any_channel(session: Session) -> None:
    with pytest.raises(InvalidArgument, match="names channels and is not a pattern"):
        session.durables.create("orders", "billing")
    with pytest.raises(InvalidArgument, match="not a durable type"):
        session.durables.create("a/*", "billing", type="odd")  # type: ignore[arg-type]  # the point
    with pytest.raises(InvalidSelector):
        session.durables.create("a/*", "billing", selector="price >")
    with pytest.raises(InvalidArgument, match="strict_order"):
        session.durables.create("a/*", "billing", strict_order=True)
    assert session.durables.list() == []


@pytest.mark.spec("D22")
def test_creating_if_missing_returns_an_existing_pattern_durable(session: Session) -> None:
    first = session.durables.create("a/*", "billing", if_missing=True)

    assert session.durables.create("a/*", "billing", if_missing=True) == first
    assert session.durables.get("/a/*", "billing") == first
    with pytest.raises(NameAlreadyBound):
        session.durables.create("a/*", "billing")
    with pytest.raises(NameAlreadyBound, match="type"):
        session.durables.create("a/*", "billing", type="serial", if_missing=True)


@pytest.mark.spec("D22")
def test_it_outlives_a_restart_and_a_backup(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        session.durables.create("a/*", "billing", type="serial", backoff={"first": "1s"})
        session.durables.create("b/*", "gone")
        session.durables.delete("b/*", "gone")
        session.back_up(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    for place in (
        "realm",
        "realm",
        "restored",
    ):  # a journal, a snapshot, a backup
        with penstock.Realm(tmp_path / place) as realm, realm.connect() as session:
            (kept,) = session.durables.list()
            assert (kept.pattern, kept.name, kept.type) == ("a/*", "billing", "serial")
            assert kept.backoff is not None
            session.channels.create(f"a/{len(session.channels.list())}").publish(b"")
            newest = session.channels.list()[-1]
            assert outstanding(session, newest) == 1


@pytest.mark.spec("D22", "C7")
def test_an_imported_channel_has_the_durables_of_its_pattern(
    session: Session, tmp_path: Path
) -> None:
    session.channels.create("x").publish(b"old")
    session.channels.create("y").durables.create("billing", type="serial")
    for name in ("x", "y"):
        session.channels.export(name, tmp_path / name)
    session.durables.create("a/*", "billing")

    made = session.channels.import_from(tmp_path / "x", "a/x")
    made.publish(b"new")

    assert outstanding(session, "a/x") == 1
    with pytest.raises(NameAlreadyBound, match="with other attributes: "):
        session.channels.import_from(tmp_path / "y", "a/y")
    assert session.channels.list() == ["a/x", "x", "y"]


@pytest.mark.spec("D22", "A2")
def test_it_takes_the_right_to_everything(tmp_path: Path) -> None:
    with (
        penstock.Realm(access__mode="mandatory", access__password_rounds=4_096) as realm,
        realm.connect() as administrator,
    ):
        administrator.access.grant("user@*", "access", "channels")
        administrator.access.grant("user@*", "durable", channel="*")
        administrator.durables.create("a/*", "billing")
        with realm.connect(user="user") as user:
            user.channels.create("a/1")
            assert names_on(user, "a/1") == ["billing"]
            assert [durable.name for durable in user.durables.list()] == ["billing"]
            with pytest.raises(AccessDenied, match="'full' on the realm"):
                user.durables.create("b/*", "mine")
            with pytest.raises(AccessDenied, match="'full' on the realm"):
                user.durables.delete("a/*", "billing")
