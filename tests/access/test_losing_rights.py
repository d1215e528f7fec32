"""Revoked rights end at once, also for open subscriptions and transfers (SEM A3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.access.acl import Entry
from penstock_core.access.rights import Principal
from penstock_core.api.channels import CreateChannel, DeleteChannel
from penstock_core.api.transfers import (
    BeginBackup,
    BeginExport,
    CommitImport,
    PutImport,
    ReadBackup,
    ReadExport,
)
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import AccessDenied
from penstock_server.runtime.access.permits import Permits
from tests.asking import ask

pytestmark = pytest.mark.spec("A3")

User = Callable[[str], Session]


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
    ) as realm:
        yield realm


@pytest.fixture
def owner(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as session:
        session.access.grant("owner@*", "access", "channels")
        session.access.grant("reader@*", "access")
        with realm.connect(user="owner") as owner:
            yield owner


@pytest.fixture
def reader(realm: penstock.Realm, owner: Session) -> Iterator[Session]:
    with realm.connect(user="reader") as session:
        yield session


def test_a_creator_gets_all_rights_and_others_get_none(owner: Session, reader: Session) -> None:
    owner.channels.create("orders")
    owner.queues.create("work")

    entries = owner.access.entries(channel="orders").entries
    assert [(entry.subject, entry.rights) for entry in entries] == [("owner@*", ("full",))]
    assert owner.access.entries(queue="work").entries == entries
    assert owner.channels.list() == ["orders"]
    assert reader.channels.list() == []
    with pytest.raises(AccessDenied, match="any right on channel orders"):
        reader.channels.get("orders")


def test_a_name_that_is_used_again_starts_afresh(owner: Session, reader: Session) -> None:
    owner.channels.create("orders")
    owner.access.grant("reader@*", "subscribe", channel="orders")
    owner.channels.delete("orders")
    owner.channels.create("orders")

    with pytest.raises(AccessDenied):
        reader.channels.get("orders")


@pytest.mark.parametrize("kind", ["plain", "durable"])
def test_a_subscription_that_loses_its_right_ends_with_the_reason(
    owner: Session, reader: Session, kind: str
) -> None:
    orders = owner.channels.create("orders")
    orders.durables.create("kept")
    owner.access.grant("reader@*", "subscribe", channel="orders")
    channel = reader.channels.get("orders")
    opened = (
        channel.subscribe(start="earliest")
        if kind == "plain"
        else channel.durables.get("kept").subscribe()
    )
    orders.publish(b"first")
    events = iter(opened)
    assert next(events).data == b"first"

    owner.access.revoke("reader@*", channel="orders")

    with pytest.raises(AccessDenied, match="'subscribe' on channel orders"):
        next(events)
    assert reader.access.me().user == "reader"


def test_allowed_requests_are_checked_again_after_a_change_of_rights(
    owner: Session, reader: Session
) -> None:
    owner.channels.create("orders")
    owner.access.grant("reader@*", "publish", channel="orders")
    channel = reader.channels.get("orders")
    channel.publish(b"mine")

    owner.access.revoke("reader@*", "publish", channel="orders")

    with pytest.raises(AccessDenied, match="'publish' on channel orders"):
        channel.publish(b"not mine")
    owner.access.grant("reader@*", "publish", channel="orders")
    channel.publish(b"mine again")


def test_a_group_that_loses_a_member_takes_its_rights_along(
    realm: penstock.Realm, owner: Session, reader: Session
) -> None:
    owner.channels.create("orders")
    with realm.connect() as trusted:
        trusted.access.create_group("readers", ["reader"])
        owner.access.grant("group:readers", "publish", channel="orders")
        channel = reader.channels.get("orders")
        channel.publish(b"as a member")

        trusted.access.change_group("readers", remove=["reader"])

        with pytest.raises(AccessDenied):
            channel.publish(b"as nobody")


def test_a_session_that_loses_access_ends(realm: penstock.Realm, reader: Session) -> None:
    with realm.connect() as trusted:
        reader.info()
        trusted.access.revoke("reader@*")

        with pytest.raises(AccessDenied, match="'access' on the realm"):
            reader.info()


def test_a_channel_of_another_user_cannot_be_a_dead_event_store(
    realm: penstock.Realm, owner: Session
) -> None:
    with realm.connect() as trusted:
        trusted.channels.create("theirs")
        trusted.access.grant("owner@*", "subscribe", channel="theirs")

    with pytest.raises(AccessDenied, match="'publish' on channel theirs"):
        owner.channels.create("mine", dead_event_store="theirs")
    with pytest.raises(AccessDenied):
        owner.joins.create("theirs", "theirs")


def test_rights_of_a_creation_do_not_reach_the_next_owner(realm: penstock.Realm) -> None:
    async def raced() -> list[Entry]:
        running = realm.running
        access = running.access
        for user, right in (("slow", "channels"), ("quick", "full")):
            await access.accounts.grant("realm", "", f"{user}@*", rights=("access", right))
        slow, quick = (
            Permits(access, running.directory, Principal(user, "h")) for user in ("slow", "quick")
        )
        made, ended = asyncio.Event(), asyncio.Event()
        create, delete = CreateChannel("x", Definition()), DeleteChannel("x")

        async def slowly() -> None:
            await running.create_channel("x", Definition())
            made.set()
            with contextlib.suppress(TimeoutError):  # the next one has to wait for this
                async with asyncio.timeout(0.5):
                    await ended.wait()

        async def next_one() -> None:
            await made.wait()
            await quick.permitted(delete, lambda: running.delete_channel("x"))
            await quick.permitted(create, lambda: running.create_channel("x", Definition()))
            ended.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slow.permitted(create, slowly))
            tasks.create_task(next_one())
        return access.accounts.acl.entries("channel", "x")

    assert realm.loop.call(raced()) == [Entry("quick@*", ("full",))]


def test_an_export_ends_with_the_right_it_was_begun_with(
    realm: penstock.Realm, owner: Session
) -> None:
    owner.channels.create("orders").publish(b"one")
    export = ask(owner, BeginExport("orders"))["export"]
    assert ask(owner, ReadExport(export, 0, 0))
    with realm.connect() as trusted:
        trusted.access.revoke("owner@*", channel="orders")

    with pytest.raises(AccessDenied, match="'full' on channel orders"):
        ask(owner, ReadExport(export, 0, 0))


def test_a_backup_needs_all_rights_and_ends_without_them(tmp_path: Path) -> None:
    with (
        penstock.Realm(tmp_path, access__mode="mandatory") as realm,
        realm.connect() as trusted,
        realm.connect(user="owner") as owner,
    ):
        trusted.access.grant("owner@*", "access", "admin", "channels")
        with pytest.raises(AccessDenied, match="'full' on the realm"):
            ask(owner, BeginBackup())
        trusted.access.grant("owner@*", "full")
        backup = ask(owner, BeginBackup())["backup"]
        assert ask(owner, ReadBackup(backup, 0, 0))
        trusted.access.revoke("owner@*", "full")

        with pytest.raises(AccessDenied, match="'full' on the realm"):
            ask(owner, ReadBackup(backup, 0, 0))


def test_an_import_ends_with_the_right_it_was_begun_with(
    realm: penstock.Realm, owner: Session
) -> None:
    with realm.connect() as trusted:
        trusted.access.revoke("owner@*", "channels")

    for request in (CommitImport("import-1"), PutImport("import-1", 0, 0)):
        with pytest.raises(AccessDenied, match="'channels' on the realm"):
            ask(owner, request)


def test_acts_and_refusals_are_audited(realm: penstock.Realm, owner: Session) -> None:
    owner.channels.create("orders")
    with pytest.raises(AccessDenied):
        owner.pause_publishing()
    with realm.connect() as trusted:
        newest = [*trusted.access.audit(1, kind="refusals"), *trusted.access.audit(1)]

    assert [
        (record.principal, record.operation, record.target, record.outcome) for record in newest
    ] == [
        ("owner@localhost", "realm.pause", "", "access-denied"),
        ("owner@localhost", "channel.create", "orders", "done"),
    ]


@pytest.mark.spec("D21")
def test_a_pattern_follows_the_right_to_read_its_channels(owner: Session, reader: Session) -> None:
    errors: list[Exception] = []
    reader.on_error(errors.append)
    for name in ("a/1", "a/2"):
        owner.channels.create(name).publish(b"1")
    owner.access.grant("reader@*", "subscribe", channel="a/1")
    first = owner.channels.get("a/1")
    with reader.subscribe("a/*", start="earliest") as subscription:
        assert subscription.channels == ["a/1"]
        assert next(iter(subscription)).channel == "a/1"

        owner.access.grant("reader@*", "subscribe", channel="a/2")
        assert next(iter(subscription)).channel == "a/2"
        owner.access.revoke("reader@*", "subscribe", channel="a/1")
        first.publish(b"2")
        assert subscription.next_batch(0.2) is None
        assert subscription.channels == ["a/2"]
        owner.access.grant("reader@*", "subscribe", channel="a/1")
        event = next(iter(subscription))

    assert (event.channel, event.data) == ("a/1", b"2")
    assert errors == []


@pytest.mark.spec("D21")
def test_a_channel_made_by_its_owner_joins_the_owners_pattern(owner: Session) -> None:
    with owner.subscribe("a/*") as subscription:
        owner.channels.create("a/1").publish(b"1")
        owner.channels.delete("a/1")
        owner.channels.create("a/1").publish(b"2")

        while (event := next(iter(subscription))).data != b"2":
            pass  # the first one may have been read in time

    assert event.channel == "a/1"
