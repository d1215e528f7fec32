"""Passwords that wait for their turn to be checked: in order, and only while their client waits."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from packages.amqp.tests.frames import SASL, SASL_INIT, frame, performative
from packages.client.tests.patience import eventually
from penstock_amqp.wire.types import Symbol, encode
from penstock_core.vocabulary.errors import ConnectionLost, SignInLocked
from penstock_core.wire.scram import verifier
from penstock_server.runtime.access.askers import Asker, asker
from penstock_server.runtime.access.passwords import (
    CONCURRENT_MAX,
    USER_WAITING_MAX,
    WAITING_MAX,
    Passwords,
)
from penstock_testing.loop import pass_time, simulated
from tests.access.realms import QUICK

KNOWN = verifier("right", b"s" * 16, 4_096)


class Gate:
    """An offload that checks passwords one after the other, when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.checks: list[asyncio.Future[None]] = []

    async def __call__(self, check: Callable[[], Any], /) -> Any:
        self.begun += 1
        allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.checks.append(allowed)
        await allowed
        return check()

    def let_through(self) -> None:
        """The check that was begun first."""
        self.checks.pop(0).set_result(None)


class Queue:
    """Clients that have sent a password each."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.passwords = Passwords(self.gate)
        self.answers: dict[str, object] = {}
        self.askers: dict[str, Asker] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def comes(self, *names: str, host: str = "h", user: str = "") -> None:
        for name in names:
            self.askers[name] = Asker()
            context = copy_context()
            context.run(asker.set, self.askers[name])
            work = self._answer(name, host, user)
            self.tasks.append(asyncio.get_running_loop().create_task(work, context=context))
            await pass_time(0.1)

    async def _answer(self, name: str, host: str, user: str) -> None:
        try:
            self.answers[name] = await self.passwords.is_right(name, KNOWN, host, user=user or name)
        except (ConnectionLost, SignInLocked) as error:
            self.answers[name] = type(error)

    async def goes(self, name: str) -> None:
        self.askers[name].disconnect()
        await pass_time(0.1)

    async def turn(self) -> None:
        self.gate.let_through()
        await pass_time(0.1)


@simulated
async def test_a_password_of_a_disconnected_client_is_dropped_at_once_and_never_checked() -> None:
    queue = Queue()
    await queue.comes("a", "b", "gone", "d", "right")
    assert queue.gate.begun == CONCURRENT_MAX == 2

    await queue.goes("gone")
    assert queue.answers == {"gone": ConnectionLost}, "nobody's turn had to end for that"

    for _ in range(4):
        await queue.turn()
    assert queue.answers == {
        "gone": ConnectionLost,
        "a": False,
        "b": False,
        "d": False,
        "right": True,
    }
    assert queue.gate.begun == 4


@simulated
async def test_disconnected_clients_do_not_count_for_their_host() -> None:
    queue = Queue()
    names = [f"n{number}" for number in range(WAITING_MAX)]
    await queue.comes(*names)
    await queue.comes("late")
    assert queue.answers == {"late": SignInLocked}

    for name in names[CONCURRENT_MAX:]:
        await queue.goes(name)
    await queue.comes("right")
    for _ in range(CONCURRENT_MAX + 1):
        await queue.turn()

    assert queue.answers["right"] is True
    assert queue.gate.begun == CONCURRENT_MAX + 1


@simulated
async def test_guesses_of_one_user_leave_room_for_the_others_of_the_address() -> None:
    queue = Queue()
    guesses = [f"guess{number}" for number in range(200)]
    await queue.comes(*guesses, user="bob")
    refused = [name for name in guesses if queue.answers.get(name) is SignInLocked]
    assert len(refused) == 200 - USER_WAITING_MAX

    await queue.comes("right", user="alice")
    for _ in range(USER_WAITING_MAX + 1):
        await queue.turn()
    assert queue.answers["right"] is True


@simulated
async def test_addresses_take_turns() -> None:
    queue = Queue()
    await queue.comes(*(f"n{number}" for number in range(WAITING_MAX)), host="flood")
    await queue.comes("right", host="other")

    for _ in range(CONCURRENT_MAX + 2):
        await queue.turn()

    assert queue.answers["right"] is True
    assert len(queue.answers) <= CONCURRENT_MAX + 2


@simulated
async def test_a_check_that_has_begun_ends_and_passes_its_turn_on() -> None:
    """A client that disconnects during its check must not let more threads run than there are
    turns."""

    queue = Queue()
    await queue.comes("a", "b", "c")
    await queue.goes("a")
    assert queue.gate.begun == CONCURRENT_MAX

    await queue.turn()
    assert queue.answers["a"] is False, "a wrong one counts though its client has gone"
    assert queue.gate.begun == CONCURRENT_MAX + 1


@pytest.mark.parametrize("seed", range(20))
@simulated
async def test_a_turn_granted_during_a_disconnect_passes_to_the_next_check(seed: int) -> None:
    queue = Queue()
    await queue.comes("a", "b", "c", "right")
    queue.gate.let_through()
    queue.gate.let_through()
    await pass_time(0)
    queue.askers["c"].disconnect()
    await pass_time(0.1)
    while queue.answers.keys() != {"a", "b", "c", "right"}:
        await queue.turn()

    assert queue.answers["right"] is True
    assert not queue.passwords.queues
    assert queue.passwords.free == CONCURRENT_MAX


@pytest.mark.parametrize("seed", range(20))
@simulated
async def test_a_cancelled_task_passes_its_turn_on(seed: int) -> None:
    queue = Queue()
    await queue.comes("a", "b", "c", "right")
    queue.gate.let_through()
    await pass_time(0)
    queue.tasks[2].cancel()
    await pass_time(0.1)
    while "right" not in queue.answers:
        await queue.turn()
    if queue.gate.checks:
        await queue.turn()

    assert queue.passwords.free == CONCURRENT_MAX
    assert queue.passwords.waiting == {}


# --- through a realm's front ends -------------------------------------------------------


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as running:
        yield running


def basic(realm: penstock.Realm, password: str) -> tuple[str, bytes]:
    secret = base64.b64encode(f"admin:{password}".encode())
    request_head = b"GET /api/v1/me HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic " + secret
    return realm.listen_http(), request_head + b"\r\n\r\n"


def form(realm: penstock.Realm, password: str) -> tuple[str, bytes]:
    body = f'{{"user":"admin","password":"{password}"}}'.encode()
    head = (
        "POST /api/v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return realm.listen_http(), head.encode() + body


def plain(realm: penstock.Realm, password: str) -> tuple[str, bytes]:
    response = b"\0admin\0" + password.encode()
    init = performative(SASL_INIT, encode(Symbol("PLAIN")), encode(response))
    return realm.listen_amqp(), SASL + frame(init, kind=1)


def queued(passwords: Passwords) -> int:
    """Return the number of passwords that wait for a turn."""
    return sum(map(len, passwords.queues.values()))


@pytest.mark.parametrize("way", [basic, form, plain])
def test_disconnecting_drops_a_waiting_password_in_every_front_end(
    realm: penstock.Realm, way: Callable[[penstock.Realm, str], tuple[str, bytes]]
) -> None:
    passwords = realm.access.passwords
    begun: list[int] = []
    opened = threading.Event()
    real = passwords.offload

    async def slow(check: Callable[[], Any], /) -> Any:
        def work() -> Any:
            opened.wait(60)
            return check()

        begun.append(len(begun))
        return await real(work)

    passwords.offload = slow
    with ExitStack() as stack:
        peers: list[socket.socket] = []
        stack.callback(opened.set)
        for number in range(CONCURRENT_MAX + 2):
            url, request = way(realm, f"wrong-{number}")
            address = urlsplit(url).hostname or "", urlsplit(url).port or 0
            peers.append(stack.enter_context(socket.create_connection(address, timeout=30)))
            peers[-1].sendall(request)
            eventually(lambda: sum(passwords.waiting.values()) == len(peers))
        assert (len(begun), queued(passwords)) == (CONCURRENT_MAX, 2)

        peers[-1].close()
        eventually(lambda: queued(passwords) == 1)
        assert not opened.is_set(), "nobody's turn had to end for that"
        opened.set()
        eventually(lambda: not passwords.waiting)

        assert len(begun) == CONCURRENT_MAX + 1
