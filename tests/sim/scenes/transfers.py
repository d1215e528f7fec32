"""Transactions over two stores whose replies get lost: all of a transaction is stored, or nothing
(SEM X1, X2, X4)."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any

from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AlreadyCommitted,
    NameAlreadyBound,
    NoSuchTransaction,
    PenstockError,
)
from penstock_server.runtime.writer.transactions import StorePart
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher, answer, body, stored
from tests.sim.promises import Ledger
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

TRANSACTIONS = 8
"""Number of transactions of each client."""
STORES = ("left", "right")
_WAIT_S = 0.015
"""The longest wait for the reply to a commit before the client asks for the state."""


class Transfers:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        rows = random.choice((0, 10))
        left_type = random.choice(("persistent", "paged"))
        self._definitions = {
            "left": Definition(type=left_type, storage=spindles(left_type, rows)),
            "right": Definition(
                type="mixed",
                kind=random.choice(("channel", "queue")),
                storage=spindles("mixed", rows),
            ),
        }
        self._is_joined = random.random() < 0.5
        """Whether events on ``left`` are copied to ``echo``."""
        self._ledgers = {name: Ledger(name) for name in STORES}
        self._done = {"a": 0, "b": 0}
        self._ended: dict[str, bool] = {}
        """Whether each ended transaction was committed, as answered."""
        self._plain = Publisher(world, self._ledgers["left"], "plain", compose=_single, publishes=6)

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        await self._world.create("echo", Definition(type="persistent"))
        if self._is_joined:
            with contextlib.suppress(NameAlreadyBound):
                await self._world.realm.joins.create("left", "echo", "", archive=False)
        await self._check_atomic()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for client in self._done:
            group.create_task(self._client(client))
        group.create_task(self._plain.run())

    async def _client(self, client: str) -> None:
        world = self._world
        while self._done[client] < TRANSACTIONS:
            await pass_time(world.random.expovariate(4))
            transaction = f"{client}-{self._done[client]}"
            try:
                await self._end(transaction)
            except PenstockError:
                continue
            self._done[client] += 1

    async def _end(self, transaction: str) -> None:
        """Bring a transaction to its end from any state."""
        transactions = self._world.realm.transactions
        try:
            info = await transactions.describe(transaction)
        except NoSuchTransaction:
            assert transaction not in self._ended, f"{transaction} was forgotten"
            await transactions.begin(
                transaction, [self._world.numbers[name] for name in self._parts(transaction)]
            )
            info = await transactions.describe(transaction)
        while info.state == "open":  # a commit fails for longer only while the disk is full
            if self._is_given_up(transaction):
                await transactions.abort(transaction)
            else:
                await self._commit(transaction)
            info = await transactions.describe(transaction)
        is_committed = info.state == "committed"
        assert is_committed != self._is_given_up(transaction), f"{transaction} is {info.state}"
        self._ended[transaction] = is_committed
        if is_committed:
            self._confirm(transaction, dict(info.spans))
        self._world.note(f"{transaction} {info.state} {info.spans}")

    async def _commit(self, transaction: str) -> None:
        """Commit; the reply may be lost."""
        world, parts = self._world, self._parts(transaction)
        for name, events in parts.items():
            self._ledgers[name].offered.update(event.data for event in events)
        store_parts = [
            StorePart(world.numbers[name], [body(events)]) for name, events in parts.items()
        ]

        def request(reply: Any) -> None:
            world.realm.transactions.commit(transaction, store_parts, reply)

        try:
            async with asyncio.timeout(world.random.uniform(0.001, _WAIT_S)):
                spans = await world.gate.published(answer(request))
        except TimeoutError:
            world.note(f"{transaction} was not answered in time")
        except AlreadyCommitted as error:
            raise AssertionError(f"{transaction} was open a moment ago") from error
        else:
            self._confirm(transaction, dict(spans))

    def _confirm(self, transaction: str, spans: dict[int, Span]) -> None:
        for name, events in self._parts(transaction).items():
            span = Span(*spans[self._world.numbers[name]])
            datas = [event.data for event in events]
            earlier_span = self._ledgers[name].confirmed.get((transaction, 0))
            assert earlier_span in (None, span), f"{transaction} has got {earlier_span}, and {span}"
            self._ledgers[name].confirm(transaction, 0, span, datas=datas)

    def _draw(self, transaction: str) -> Random:
        return Random(f"{self._world.seed}/{transaction}")

    def _is_given_up(self, transaction: str) -> bool:
        return self._draw(transaction).random() < 0.2

    def _parts(self, transaction: str) -> dict[str, list[Event]]:
        draw = self._draw(transaction + "/parts")
        return {
            name: [Event(f"{transaction}/{i}".encode()) for i in range(draw.randint(1, 4))]
            for name in draw.sample(STORES, 2)
        }

    # --- invariants ----------------------------------------------------------------------

    async def _check_atomic(self) -> None:
        """Check that no transaction is stored in part."""
        datas: dict[str, set[bytes]] = {}
        for name in STORES:
            rows = await stored(self._world, name)
            datas[name] = {row.data for row in rows}
            assert len(datas[name]) == len(rows), f"an event is stored twice on {name}"
        for client in self._done:
            for n in range(TRANSACTIONS):
                transaction = f"{client}-{n}"
                is_stored = [
                    event.data in datas[name]
                    for name, events in self._parts(transaction).items()
                    for event in events
                ]
                assert all(is_stored) or not any(is_stored), f"{transaction} is stored in part"
                if transaction in self._ended:
                    assert all(is_stored) == self._ended[transaction], f"{transaction} has turned"
        echo = [row.data for row in await stored(self._world, "echo")]
        copied = datas["left"] if self._is_joined else set()
        assert sorted(echo) == sorted(copied), "what was committed was not copied, each once"

    async def check(self) -> None:
        await self._check_atomic()
        for name, ledger in self._ledgers.items():
            ledger.check_complete(
                [(row.event_id, row.data) for row in await stored(self._world, name)]
            )


def _single(draw: Random, label: str) -> list[Event]:
    return [Event(label.encode() * draw.randint(1, 3))]
