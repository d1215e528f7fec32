"""The JMS engine in a realm: subscribers wait for events by their selectors, and keep their places
over lost connections and restarts (SEM J2, J5)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, LATE, End, Lives, Outlet, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_core.vocabulary.errors import CapacityReached
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from penstock_testing.loop import pass_time, simulated

TYPES = ("mixed", "persistent", "paged", "reliable", "off_heap")
DISK = ("mixed", "persistent", "paged")


async def place(
    lives: Lives,
    selector: str = "",
    *,
    name: str = "here",
    credit: int = 100,
    confirms: bool = True,
) -> Any:
    """A subscriber whose connection may be lost: its number, and where its events go."""
    outlet = Outlet("s", selector)
    opened = await lives.realm.subscriptions.subscribe(
        ChannelId(lives.number("orders")),
        FromEarliest(),
        outlet,
        credit=credit,
        place=name,
        confirms=confirms,
    )
    return opened.number, outlet


# --- selectors ------------------------------------------------------------------------------


@pytest.mark.spec("J2", "F5")
@pytest.mark.parametrize("type", [*TYPES, "simple", "transient"])
@simulated
async def test_what_matches_nobody_is_not_even_kept_in_memory(type: str) -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life():
        await lives.create("orders", type, engine="jms")
        number, picky = await place(lives, "tag = 'a' AND price > 5", credit=0)
        later = await lives.follow("orders", "price IS NULL", session="later")
        for price in range(10):
            await lives.put("orders", Event(b"%d" % price, tag="a", properties={"price": price}))
        await lives.put("orders", *named("dull", tag="b"))

        state = lives.realm.directory.channels[lives.number("orders")].state
        if type == "transient":  # who has no room for it when it passes does not get it
            assert (state.counters.relayed, picky.events) == (11, [])
        else:
            assert list(state.stored) == [6, 7, 8, 9]
            assert state.counters.dropped == 7
            lives.realm.subscriptions.credit(number, 100)
            assert datas(await picky.has(4)) == ["6", "7", "8", "9"]
            lives.realm.subscriptions.credit(number, 0, 10)
        assert datas(await later.has(1)) == ["dull"]
        await pass_time(0.1)
        assert (await lives.info("orders")).events == 0
        assert (await lives.realm.describe("1")).memory_bytes == 0
        await lives.conserved()


@pytest.mark.spec("J5", "F5")
@simulated
async def test_an_absent_subscriber_waits_for_what_its_selector_matches() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", "persistent", engine="jms")
        number, _ = await place(lives, "tag = 'a'")
        lives.realm.subscriptions.lose(number)
        for n in range(6):
            await lives.put("orders", *named(str(n), tag="ab"[n % 2]))
        assert (await lives.info("orders")).events == 3

        _, again = await place(lives, "tag = 'a'")
        assert datas(await again.has(3)) == ["0", "2", "4"]
        await lives.put("orders", *named("x", tag="b"), *named("y", tag="a"))
        assert datas(await again.has(4))[3:] == ["y"]
        await lives.conserved()


class Breaking(Outlet):
    """Loses the connection of another subscriber while it is served."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        super().__init__("breaking")
        self._subscriptions = subscriptions
        self.other: int | None = None

    def deliver(self, rows: Any, redeliveries: Any) -> None:
        super().deliver(rows, redeliveries)
        if self.other is not None:
            self._subscriptions.lose(self.other)


@pytest.mark.spec("J5")
@pytest.mark.parametrize("confirms", [True, False])
@simulated
async def test_what_is_offered_until_the_channel_knows_of_the_loss_comes_again(
    confirms: bool,
) -> None:
    """One channel serves all in turn: the next ones' connections may break meanwhile."""
    lives = Lives()
    async with lives.life():
        await lives.create("orders", "persistent", engine="jms")
        breaking = Breaking(lives.realm.subscriptions)
        await lives.realm.subscriptions.subscribe(
            ChannelId(lives.number("orders")), FromEarliest(), breaking, credit=100, confirms=True
        )
        breaking.other, lost = await place(lives, confirms=confirms)
        await lives.put("orders", *named("0", "1"))
        await lives.put("orders", *named("2", "3"))
        assert datas(await breaking.has(4)) == ["0", "1", "2", "3"]
        assert lost.events == []

        _, again = await place(lives, confirms=confirms)

        assert datas(await again.has(4)) == ["0", "1", "2", "3"]
        await lives.conserved()


@pytest.mark.spec("X1", "J2", "T4")
@simulated
async def test_a_transaction_is_refused_for_what_somebody_wants_and_only_for_that() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create(
            "orders",
            "persistent",
            engine="jms",
            capacity=2,
            storage=Storage(honour_capacity=True),
        )
        await lives.durable("orders", "d", "shared", selector="tag = 'a'")
        await lives.put("orders", *named("0", "1", tag="a"))

        await lives.transact("t1", {"orders": named("2", "3", "4", tag="b")})
        with pytest.raises(CapacityReached):
            await lives.transact("t2", {"orders": named("5", tag="a")})

        assert datas(await lives.stored("orders")) == ["0", "1"]
        await lives.conserved()


# --- places and restarts --------------------------------------------------------------------


@pytest.mark.spec("J5", "J2", "T8")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sealing", [LATE, EAGER])
@pytest.mark.parametrize("type", TYPES)
@simulated
async def test_what_waited_for_an_absent_subscriber_alone_leaves_with_a_restart(
    type: str, sealing: Any, end: End
) -> None:
    """Some events were on disk for a durable that has acknowledged them since."""
    lives = Lives(sealing=sealing)
    async with lives.life(end):
        await lives.create("orders", type, engine="jms")
        await lives.durable("orders", "d", "shared", selector="tag = 'a'")
        await lives.durable("orders", "idle", "shared", selector="tag = 'b'")
        number, _ = await place(lives)
        lives.realm.subscriptions.lose(number)
        await lives.put("orders", *named("0", "1", tag="a"))
        await lives.put("orders", *named("2", tag="b"), *named("3"))
        await pass_time(0.2)
        worker = await lives.attach("orders", "d")
        await worker.has(2)
        await worker.settle(0, 1)
        assert datas(await lives.stored("orders")) == ["0", "1", "2", "3"]
        await worker.leave()
        await lives.conserved()
    async with lives.life(end):
        await pass_time(2)
        kept = ["2"] if type in DISK else []
        assert datas(await lives.stored("orders")) == kept
        info = await lives.info("orders")
        assert info.counters.dropped == 0
        assert (info.subscribers, info.storage.memory_bytes) == (0, 0)
        await lives.conserved()
        span = await lives.put("orders", *named("nobody"))
        assert span.first >= 4
    async with lives.life():
        await pass_time(2)
        assert datas(await lives.stored("orders")) == kept
        await lives.conserved()


@pytest.mark.spec("J5", "J3")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_after_a_restart_it_begins_anew_under_its_place(end: End) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders", "persistent", engine="jms")
        await lives.durable("orders", "d", "shared")
        number, _ = await place(lives)
        lives.realm.subscriptions.lose(number)
        await lives.put("orders", *named("0", "1"))
    async with lives.life():
        _, again = await place(lives)
        await lives.put("orders", *named("2"))

        assert datas(await again.has(1)) == ["2"]
        assert datas(await lives.stored("orders")) == ["0", "1", "2"]
        await lives.conserved()
