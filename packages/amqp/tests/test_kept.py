"""Objects of Proton's are given back on the loop's thread: nothing of them is ever left for the
cyclic garbage collector, which runs in any thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import proton
import pytest
from cproton_ffi import lib
from proton._wrapper import Wrapper

import penstock
from packages.amqp.tests.abandoned import DECLARATION, DECLARED, ENDS, HALF_SENT, KEPT, LINKS
from packages.amqp.tests.coordinators import (
    BROKEN,
    coordinator,
    declare,
    discharge,
    granted,
    in_transaction,
)
from packages.amqp.tests.dialogue import attach_sender, talk
from packages.amqp.tests.frames import (
    DETACH,
    DISPOSITION,
    END,
    frame_of,
    message,
    receiver,
    terminus,
    transfer,
)
from packages.amqp.tests.pairs import Pair
from packages.amqp.tests.peers import Peer
from penstock.client.sync.sync import Session
from penstock_amqp import kept as keeping
from penstock_amqp.flows import key_of
from penstock_amqp.kept import release_with, retain
from penstock_amqp.wire.types import UInt
from tests.frozen_heap import only_new_objects_tracked
from tests.loops import on_a_loop

REJECTED, DECLARED_STATE = 0x25, 0x33
LOOKS_MAX = 2_000


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is collected, and what was there before is not looked at."""
    with only_new_objects_tracked():
        yield


def wrappers() -> list[str]:
    kinds = (Wrapper, proton.Collector, proton.Event)
    return [
        type(wrapper).__name__ for wrapper in gc.get_objects() if issubclass(type(wrapper), kinds)
    ]


def check_none(session: Session) -> None:
    """Each look is a request to the realm, whose loop goes on meanwhile."""
    for _ in range(LOOKS_MAX):
        if not wrappers():
            return
        session.queues.list()
    assert wrappers() == []


@pytest.fixture
def url(realm: penstock.Realm, session: Session) -> str:
    session.queues.create("work").push(b"held")
    session.channels.create("news", engine="jms")
    return realm.listen_amqp()


def attached(url: str) -> Peer:
    """A peer with links of every kind, half a message and a transaction."""
    peer = Peer(url)
    peer.say(LINKS)
    peer.hear(b"held")
    peer.hear(b"sends")
    peer.say(HALF_SENT + DECLARATION)
    peer.hear(DECLARED)
    return peer


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_connection_that_ends_leaves_none(
    url: str, session: Session, uncollected: None, end: bytes
) -> None:
    peer = attached(url)
    if end:
        peer.say(end)
        peer.hear_all()
    peer.hang_up()

    check_none(session)


def test_links_and_sessions_that_end_on_a_connection_leave_none(
    url: str, session: Session, uncollected: None
) -> None:
    peer = attached(url)
    for handle in range(6):
        peer.say(frame_of(DETACH, UInt(handle), True))
        peer.next(DETACH)
    peer.say(frame_of(END))
    peer.next(END)

    check_none(session)
    peer.hang_up()


def test_links_that_are_refused_leave_none(
    realm: penstock.Realm, session: Session, uncollected: None
) -> None:
    """What the writer refuses them with is in a cycle with the frames it was raised through."""
    session.channels.create("news", engine="jms")
    wrong_kind = terminus(0x28, "news", capability="queue")
    with talk(realm) as dialogue:
        dialogue.say(receiver("kept", 0, KEPT), receiver("kept|2", 1, KEPT))
        dialogue.say(receiver("wrong", 2, wrong_kind))
        refused = [dialogue.hear(DETACH).condition for _ in range(2)]

        assert sorted(refused) == ["amqp:not-found", "amqp:resource-locked"]
        check_none(session)


def test_messages_and_transactions_that_are_refused_leave_none(
    realm: penstock.Realm, session: Session, uncollected: None
) -> None:
    session.queues.create("work")
    with talk(realm) as dialogue:
        dialogue.say(attach_sender("s", 0), coordinator(1))
        granted(dialogue)
        granted(dialogue)
        dialogue.say(transfer(0, 0, BROKEN), transfer(1, 1, declare()))
        answers = [dialogue.hear(DISPOSITION).values[4] for _ in range(2)]
        assert sorted(answer.descriptor for answer in answers) == [REJECTED, DECLARED_STATE]
        (txn,) = next(answer.value for answer in answers if answer.descriptor == DECLARED_STATE)
        dialogue.say(transfer(0, 2, message(), state=in_transaction(txn)))
        dialogue.hear(DISPOSITION)
        dialogue.say(transfer(1, 3, discharge(b"another")))
        assert dialogue.hear(DISPOSITION).values[4].descriptor == REJECTED

        check_none(session)


@on_a_loop
async def test_they_are_given_back_on_the_loop_whoever_frees_their_owner() -> None:
    class Owner:
        itself: Owner

    threads: list[int] = []
    owner = Owner()
    owner.itself = owner
    release_with(owner, b"", lambda _: threads.append(threading.get_ident()))
    del owner

    await asyncio.to_thread(gc.collect)

    assert threads == [threading.get_ident()]


class Owner:
    pass


@on_a_loop
async def owner_of(resource: bytes, release: Callable[[object], None]) -> Owner:
    """One that outlives the loop it was made on."""
    owner = Owner()
    release_with(owner, resource, release)
    return owner


@on_a_loop
async def leave_to_the_loop(resource: bytes, release: Callable[[object], None]) -> None:
    """Its owner ends with the loop."""
    owner = Owner()
    release_with(owner, resource, release)
    loop: Any = asyncio.get_running_loop()
    loop.has = owner


def test_without_a_loop_they_are_given_back_at_once() -> None:
    released: list[object] = []

    owner = owner_of(b"a loop that is closed", released.append)
    del owner
    owner = Owner()
    release_with(owner, b"none", released.append)
    del owner

    assert released == [b"a loop that is closed", b"none"]


def test_what_a_loop_that_has_ended_still_has_is_given_back_with_it() -> None:
    released: list[object] = []

    leave_to_the_loop(b"", released.append)
    gc.collect()

    assert released == [b""]


def test_what_is_kept_is_used_as_the_object_itself() -> None:
    connection = proton.Connection()
    held = retain(connection)
    held.container = "mine"
    held.hostname = "there"

    assert retain(held) is held
    assert (connection.container, held.container) == ("mine", "mine")
    assert held == connection
    assert held == retain(connection)
    assert held != retain(proton.Connection())
    assert hash(held) == hash(connection)
    del connection
    assert held.hostname == "there"


class Watched:
    """Proton's functions, with what is given back by them."""

    def __init__(self) -> None:
        self.given_back: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def pn_decref(self, pointer: Any) -> int:
        self.given_back.append(key_of(pointer))
        references: int = lib.pn_decref(pointer)
        return references


def test_a_link_is_given_back_before_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the session has ended with its links and nobody else has it, Proton frees the link with
    it: in the middle of giving back the link, whose memory it reads and frees again."""
    watched = Watched()
    monkeypatch.setattr(keeping, "pn", watched)
    pair = Pair()
    pair.sender()
    link = pair.incoming.pop()
    session = retain(link.link.session)
    pair.session.close()
    pair.pump()
    pair.engine.drop(link)
    session.close()
    pair.engine.free_session(session, [link])
    pair.connection.session().open()
    pair.pump()  # events of the engine have neither of them any more
    of_session, of_link = key_of(session._impl), key_of(link.pointer)

    del session
    assert watched.given_back == [of_session]
    del link
    assert watched.given_back == [of_session, of_link, of_session]
