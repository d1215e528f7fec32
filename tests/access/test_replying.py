"""The rights to request and to reply, and to read the replies of others."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock.client.connection.connection import RealmConnection
from penstock.client.publishing.publishing import Publisher
from penstock_core.api.channels import DescribeColumns, OpenSchedule
from penstock_core.api.patterns import WatchChannels
from penstock_core.api.requesting import CloseReplyQueue, OpenReplyQueue, OpenReplyTo
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import (
    AccessDenied,
    DurableInUse,
    InvalidArgument,
    InvalidName,
    LimitReached,
    MemoryLimit,
    NameDoesNotExist,
    RealmStopping,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.temporary import SESSION_STORES_MAX
from penstock_server.frontends.native.connection import Connection
from penstock_server.frontends.shared.peer import PeerConnection
from penstock_server.runtime.access.permits import Permits
from tests.access.realms import QUICK
from tests.asking import ask, on_its_loop

PATIENT = 30.0


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    """``asker`` may only push requests, ``replier`` only take them, ``stranger`` do nothing."""
    with penstock.Realm(access__mode="optional", **QUICK) as realm, realm.connect() as session:
        for user in ("asker", "replier", "stranger", "anonymous"):
            session.access.grant(f"{user}@*", "access")
        session.queues.create("work")
        session.access.grant("asker@*", "push", queue="work")
        session.access.grant("anonymous@*", "push", queue="work")
        session.access.grant("replier@*", "pop", queue="work")
        yield realm


@pytest.mark.spec("R2", "A3")
@pytest.mark.parametrize("user", ["asker", "anonymous"])
def test_publishers_may_request_and_consumers_may_reply(realm: penstock.Realm, user: str) -> None:
    with (
        realm.connect(user=user) as asker,
        realm.connect(user="replier") as replier,
        realm.connect(user="stranger") as stranger,
        ThreadPoolExecutor(1) as pool,
    ):
        pending = pool.submit(asker.queues.get("work").request, b"a", PATIENT)
        request = replier.queues.get("work").pop(PATIENT)
        assert request is not None
        queue = request.headers["reply_to"]

        assert stranger.queues.list() == []
        assert replier.queues.list() == ["work"]
        for session in (replier, stranger):
            with pytest.raises(AccessDenied):
                session.queues.get(queue).pop(0)
            with pytest.raises(AccessDenied):
                session.queues.get(queue).peek()
            with pytest.raises(AccessDenied):
                session.queues.delete(queue)
            for message in (OpenReplyQueue(queue), CloseReplyQueue(queue)):
                with pytest.raises(AccessDenied, match="'pop'"):
                    ask(session, message)
        request.reply(b"b")

        assert pending.result(PATIENT).data == b"b"
    with realm.connect() as administrator:
        assert administrator.queues.list() == ["work"]


@pytest.mark.spec("R2", "A3")
def test_a_reply_elsewhere_needs_the_right_to_publish_there(realm: penstock.Realm) -> None:
    with realm.connect() as administrator, realm.connect(user="replier") as replier:
        administrator.queues.create("answers")
        work = administrator.queues.get("work")
        for address in ("answers", "nowhere"):
            work.push(b"", headers={"reply_to": address})
            request = replier.queues.get("work").pop(PATIENT)
            assert request is not None
            with pytest.raises(AccessDenied, match="'publish'"):
                request.reply(b"")
        assert administrator.queues.get("answers").info().events == 0


@pytest.mark.spec("R2")
def test_only_the_session_that_made_a_reply_queue_consumes_from_it() -> None:
    """The session is checked, too, if access control is off and all clients are the same user."""
    name = f"temp-reply-{32 * 'a'}"
    with penstock.Realm() as realm, realm.connect() as asker, realm.connect() as second:
        ask(asker, OpenReplyQueue(name))
        queue = second.queues.get(name)
        queue.push(b"reply")

        for consume in (queue.pop, queue.reader().open):
            with pytest.raises(DurableInUse, match="belongs to another session"):
                consume()
        web = Web(realm.listen_http())
        answer = web.ask("POST", f"queues/{name}/fetch", {"count": 1, "lease_ms": 1_000})
        assert (answer.status, answer.code) == (409, "durable-in-use")

        reply = asker.queues.get(name).pop(0)
        assert reply is not None
        assert reply.data == b"reply"


@pytest.mark.spec("R2", "D21")
def test_no_list_has_a_temporary_destination_whatever_the_rights_of_its_reader(
    realm: penstock.Realm,
) -> None:
    queue = f"temp-reply-{32 * 'a'}"
    with realm.connect() as administrator, realm.connect(user="asker") as asker:
        administrator.access.grant("maker@*", "access", "channels", "full")
        administrator.channels.create("orders")
        ask(asker, OpenReplyQueue(queue))
        with realm.connect(user="maker") as maker:
            for session in (maker, administrator):
                assert session.queues.list() == ["work"]
                assert session.channels.list() == ["orders"]
                watched = ask(session, WatchChannels("**", 1))
                assert [store["name"] for store in watched["channels"]] == ["orders"]


@pytest.mark.spec("R2")
def test_a_temporary_destination_is_published_to_by_its_name_and_not_by_its_number(
    realm: penstock.Realm,
) -> None:
    """Numbers of stores follow one another, so they can be tried."""
    name = f"temp-reply-{32 * 'a'}"
    with realm.connect(user="asker") as asker, realm.connect(user="stranger") as stranger:
        queue_number = ask(asker, OpenReplyQueue(name))["channel"]
        queue = asker.queues.get(name)

        for number in (queue_number, queue_number + 1):
            refused = f"number {number} no longer exists"
            with pytest.raises(NameDoesNotExist, match=refused):
                publish_to(stranger, number)
            for request in (OpenSchedule(number), DescribeColumns(number)):
                with pytest.raises(NameDoesNotExist, match=refused):
                    ask(stranger, request)
        assert queue.info().events == 0

        assert ask(stranger, OpenReplyTo(name))["channel"] == queue_number
        publish_to(stranger, queue_number)
        assert queue.info().events == 1
        with pytest.raises(AccessDenied, match="'peek'"):
            ask(stranger, DescribeColumns(queue_number))


def publish_to(session: penstock.Session, number: int) -> int:
    """Publish to a store by its number, without its name."""

    def publish(connection: RealmConnection) -> Awaitable[int]:
        return Publisher(connection, ChannelId(number)).publish_one(Event(b""))

    return on_its_loop(session, publish)


@pytest.mark.spec("R2")
def test_a_session_that_replies_to_many_forgets_the_names_of_deleted_queues(
    realm: penstock.Realm,
) -> None:
    with realm.connect(user="asker") as asker, realm.connect(user="replier") as replier:
        permits = permits_of(connection_of(realm, replier))
        permits.names_min = 3
        kept, *deleted = (f"temp-reply-{number:032x}" for number in range(10))
        number = ask(asker, OpenReplyQueue(kept))["channel"]
        ask(replier, OpenReplyTo(kept))
        for name in deleted:
            ask(asker, OpenReplyQueue(name))
            ask(replier, OpenReplyTo(name))
            ask(asker, CloseReplyQueue(name))
        assert len(permits.names) <= 4

        assert publish_to(replier, number) == 0


@pytest.mark.spec("R2")
def test_a_replier_that_has_reconnected_replies_by_the_name_again(realm: penstock.Realm) -> None:
    with (
        realm.connect(user="asker") as asker,
        realm.connect(user="replier") as replier,
        ThreadPoolExecutor(1) as pool,
    ):
        for data in (b"first", b"second"):
            pending = pool.submit(asker.queues.get("work").request, data, PATIENT)
            request = replier.queues.get("work").pop(PATIENT)
            assert request is not None
            if data == b"second":
                cut(realm, replier)
            request.reply(data)
            assert pending.result(PATIENT).data == data


def cut(realm: penstock.Realm, session: penstock.Session) -> None:
    """End the connection of a session, which then makes another."""
    realm.loop.call(_end(connection_of(realm, session)))


def connection_of(realm: penstock.Realm, session: penstock.Session) -> Connection:
    """The realm's end of the connection of a session."""
    for connection in realm.listener.connections:
        if isinstance(connection, Connection) and connection.session == session.session_id:
            return connection
    raise AssertionError(f"{session} is not connected")


def permits_of(connection: Connection) -> Permits:
    assert connection.caller is not None
    assert connection.caller.permits is not None
    return connection.caller.permits


async def _end(connection: PeerConnection) -> None:
    connection.end(RealmStopping("for the test"))


@pytest.mark.spec("R2")
@pytest.mark.parametrize("kind", ["queue", "topic", "reply"])
def test_no_client_gives_a_store_the_name_of_a_temporary_destination(
    realm: penstock.Realm, kind: str, tmp_path: Path
) -> None:
    name = f"temp-{kind}-{32 * 'a'}"
    with realm.connect() as administrator:
        for create in (administrator.channels.create, administrator.queues.create):
            for type in ("reliable", "persistent"):
                with pytest.raises(InvalidName, match="choose another name"):
                    create(name, type=type)
        administrator.queues.export("work", tmp_path / "work")
        with pytest.raises(InvalidName, match="choose another name"):
            administrator.queues.import_from(tmp_path / "work", name)


@pytest.mark.spec("R2", "R4")
def test_after_a_restart_a_reply_queue_is_its_users_and_the_session_that_reads_first(
    tmp_path: Path,
) -> None:
    name, large = f"temp-reply-{32 * 'a'}", b"x" * (5 << 20)
    settings = {"access__mode": "optional", "limits__memory_bytes": 24 << 20, **QUICK}
    with penstock.Realm(tmp_path, **settings) as realm, realm.connect() as administrator:
        administrator.access.grant("asker@*", "access")
        with realm.connect(user="asker") as asker:
            ask(asker, OpenReplyQueue(name))

    with (
        penstock.Realm(tmp_path, **settings) as realm,
        realm.connect() as administrator,
        realm.connect(user="asker") as asker,
        realm.connect(user="asker") as second,
    ):
        assert filled(administrator.queues.get(name), large) == 1, "a quarter of 24 MiB"
        ask(asker, OpenReplyQueue(f"temp-reply-{32 * 'b'}"))
        assert filled(asker.queues.get(f"temp-reply-{32 * 'b'}"), large) == 0

        assert asker.queues.get(name).pop(0) is not None
        for late in (second, administrator):
            with pytest.raises(DurableInUse, match="belongs to another session"):
                late.queues.get(name).pop(0)


@pytest.mark.spec("R2")
def test_a_reply_queue_has_a_name_of_its_kind(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        for message in (OpenReplyQueue("work"), CloseReplyQueue("work")):
            with pytest.raises(InvalidArgument, match="32 random hexadecimal digits"):
                ask(session, message)
        assert ask(session, CloseReplyQueue("temp-reply-" + 32 * "0")) is None
        with pytest.raises(NameDoesNotExist, match="requesting session has ended"):
            ask(session, OpenReplyTo("temp-reply-" + 32 * "0"))


@pytest.mark.spec("R4", "C6")
def test_reply_queues_leave_the_memory_of_others_free() -> None:
    """A user without any further right fills as many as it can."""
    large, larger = b"x" * (5 << 20), b"x" * (17 << 20)
    names = [f"temp-reply-{number:032x}" for number in range(8)]
    with (
        penstock.Realm(access__mode="optional", limits__memory_bytes=96 << 20, **QUICK) as realm,
        realm.connect() as administrator,
        realm.connect(user="asker") as asker,
    ):
        administrator.access.grant("asker@*", "access")
        ticks = administrator.channels.create("ticks", type="reliable")
        for name in names:
            ask(asker, OpenReplyQueue(name))
        assert [filled(asker.queues.get(name), large) for name in names[:4]] == [3, 1, 0, 0]

        with pytest.raises(MemoryLimit, match="a temporary destination keeps 16777216 bytes"):
            administrator.queues.get(names[2]).push(large)
        assert [ticks.publish(large) for _ in range(10)]
        assert asker.queues.get(names[0]).pop(0) is not None
        assert filled(asker.queues.get(names[1]), large) == 1
        ask(asker, CloseReplyQueue(names[0]))
        ask(asker, CloseReplyQueue(names[1]))
        assert filled(asker.queues.get(names[2]), larger) == 1


def filled(queue: penstock.Queue, data: bytes) -> int:
    """Return the number of events with this data that the queue accepts."""
    for count in range(100):
        try:
            queue.push(data)
        except MemoryLimit:
            return count
    return 100


@pytest.mark.spec("R4")
def test_a_session_has_so_many_reply_queues_at_a_time(realm: penstock.Realm) -> None:
    names = [f"temp-reply-{number:032x}" for number in range(SESSION_STORES_MAX + 1)]
    with realm.connect(user="asker") as asker, realm.connect(user="replier") as second:
        for name in names[:-1]:
            ask(asker, OpenReplyQueue(name))
        with pytest.raises(LimitReached, match=f"allowed are {SESSION_STORES_MAX}"):
            ask(asker, OpenReplyQueue(names[-1]))
        ask(second, OpenReplyQueue(f"temp-reply-{32 * 'f'}"))
        ask(asker, CloseReplyQueue(names[0]))
        ask(asker, OpenReplyQueue(names[-1]))
