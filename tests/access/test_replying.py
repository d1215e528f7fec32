"""Who may ask, who may reply, and who may read the replies of others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.api.patterns import WatchChannels
from penstock.api.requesting import CloseReplyQueue, OpenReplyQueue, OpenReplyTo
from penstock.core.vocabulary.errors import AccessDenied, InvalidArgument, NameDoesNotExist
from tests.access.realms import QUICK, ask

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
def test_whoever_may_publish_may_ask_and_whoever_may_take_may_reply(
    realm: penstock.Realm, user: str
) -> None:
    with (
        realm.connect(user=user) as asker,
        realm.connect(user="replier") as replier,
        realm.connect(user="stranger") as stranger,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(asker.queues.get("work").request, b"a", PATIENT)
        request = replier.queues.get("work").pop(PATIENT)
        assert request is not None
        queue = request.headers["reply_to"]

        assert stranger.queues.list() == []
        assert replier.queues.list() == ["work"]
        for other in (replier, stranger):
            with pytest.raises(AccessDenied):
                other.queues.get(queue).pop(0)
            with pytest.raises(AccessDenied):
                other.queues.get(queue).peek()
            with pytest.raises(AccessDenied):
                other.queues.delete(queue)
            for message in (OpenReplyQueue(queue), CloseReplyQueue(queue)):
                with pytest.raises(AccessDenied, match="'pop'"):
                    ask(other, message)
        request.reply(b"b")

        assert asked.result(PATIENT).data == b"b"
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


@pytest.mark.spec("R2", "D21")
def test_no_list_has_a_temporary_destination_whatever_the_rights_of_its_reader(
    realm: penstock.Realm,
) -> None:
    topic, queue, called = (f"temp-{kind}-{32 * 'a'}" for kind in ("topic", "reply", "queue"))
    with realm.connect() as administrator, realm.connect(user="asker") as asker:
        administrator.access.grant("maker@*", "access", "channels", "full")
        administrator.channels.create(topic, type="reliable", engine="jms")
        administrator.queues.create(called, type="persistent")
        administrator.channels.create("orders")
        ask(asker, OpenReplyQueue(queue))
        with realm.connect(user="maker") as maker:
            for session in (maker, administrator):
                assert session.queues.list() == [called, "work"]
                assert session.channels.list() == ["orders"]
                watched = ask(session, WatchChannels("**", 1))
                assert [store["name"] for store in watched["channels"]] == ["orders"]


@pytest.mark.spec("R2")
def test_a_reply_queue_has_a_name_of_its_kind(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        for message in (OpenReplyQueue("work"), CloseReplyQueue("work")):
            with pytest.raises(InvalidArgument, match="32 random hexadecimal digits"):
                ask(session, message)
        assert ask(session, CloseReplyQueue("temp-reply-" + 32 * "0")) is None
        with pytest.raises(NameDoesNotExist, match="nobody waits"):
            ask(session, OpenReplyTo("temp-reply-" + 32 * "0"))
