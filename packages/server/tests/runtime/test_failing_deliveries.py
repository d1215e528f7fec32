"""An unexpected failure of a delivery ends the subscriptions that it concerns, and no others."""

from __future__ import annotations

import re
from typing import Any, Never

import pytest
from structlog.testing import capture_logs

import penstock
from packages.server.tests.runtime.living import Reader, body, living, publish
from penstock_core.channel.channel import ChannelMachine
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import Internal, LimitReached, PenstockError, RealmStopping
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.frontends.native.deliveries import SubscriptionOutlet
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated


class Unforeseen(Exception):
    pass


class Client(Reader):
    """An outlet that keeps its events and the reason of its end."""

    def __init__(self, session: str) -> None:
        super().__init__()
        self.session = session
        self.reason: PenstockError | None = None
        self.redeliveries: Redeliveries = ()
        self.fails: tuple[str, ...] = ()
        """The methods that fail."""

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        if "deliver" in self.fails:
            raise Unforeseen
        self.redeliveries = redeliveries
        super().deliver(rows, redeliveries)

    def recall(self, spans: Spans) -> None:
        raise Unforeseen

    def finished(self) -> None:
        if "finished" in self.fails:
            raise Unforeseen
        super().finished()

    def closed(self, reason: PenstockError) -> None:
        if "closed" in self.fails:
            raise Unforeseen
        self.reason = reason
        super().closed(reason)


def is_told(client: Client, logged: list[Any]) -> bool:
    """Whether the client's reason names the incident in the log."""
    assert isinstance(client.reason, Internal), client.reason
    match = re.search(r"incident ([0-9a-f]{12})\b", str(client.reason))
    assert match
    [entry] = [log_entry for log_entry in logged if log_entry.get("incident") == match[1]]
    return bool(entry["event"] == "delivery.failed" and isinstance(entry["exc_info"], Unforeseen))


async def opened(realm: RunningRealm, **attributes: Any) -> int:
    definition = Definition(**{"type": "persistent", **attributes})
    return (await realm.create_channel("orders", definition)).channel


async def durable(realm: RunningRealm, number: ChannelId, kind: str, **attributes: Any) -> None:
    create = realm.subscriptions.create_durable
    durable_attributes = DurableAttributes(**attributes)
    await create(
        number,
        "d",
        kind,
        start=FromEarliest(),
        selector="",
        persistent=None,
        attributes=durable_attributes,
    )


async def goes_on(realm: RunningRealm, number: ChannelId, client: Client) -> None:
    """Others publish and receive."""
    span = await publish(realm, number, body([b"later"]))
    await pass_time(0.1)
    assert client.ids[-1] == span.first
    assert client.reason is None


@simulated
async def test_a_subscriber_that_cannot_be_served_is_ended_and_others_continue() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        bad, good = Client("bad"), Client("good")
        bad.fails = ("deliver",)
        with capture_logs() as logged:
            for client in (bad, good):
                await realm.subscriptions.subscribe(
                    ChannelId(number), FromEarliest(), client, credit=1_000
                )
            await publish(realm, ChannelId(number), body([b"a"]))
            await pass_time(0.1)

        assert is_told(bad, logged)
        assert good.ids == [0]
        await goes_on(realm, ChannelId(number), good)
        assert (await realm.describe_channel("orders")).subscribers == 1


@pytest.mark.parametrize("kind", ["shared", "serial"])
@simulated
async def test_undelivered_events_go_back_to_the_durable_and_to_another_client(
    kind: str,
) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await durable(realm, ChannelId(number), kind)
        bad, good = Client("bad"), Client("good")
        bad.fails = ("deliver",)
        await realm.subscriptions.attach(ChannelId(number), "d", bad, window=10, pull=False)
        with capture_logs() as logged:
            await publish(realm, ChannelId(number), body([b"a", b"b"]))
            await pass_time(0.1)
        assert is_told(bad, logged)
        info = await realm.subscriptions.durable(ChannelId(number), "d")
        assert (info.in_flight, info.outstanding, info.clients) == (0, 2, ())

        await realm.subscriptions.attach(ChannelId(number), "d", good, window=10, pull=False)
        await pass_time(0.1)
        assert good.ids == [0, 1]
        assert good.redeliveries == ((1, (Span(0, 2),)),)
        await goes_on(realm, ChannelId(number), good)


@simulated
async def test_a_subscription_ends_even_if_its_outlet_cannot_be_told() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await durable(realm, ChannelId(number), "shared")
        bad, good = Client("bad"), Client("good")
        await realm.subscriptions.attach(ChannelId(number), "d", bad, window=10, pull=False)
        await realm.subscriptions.subscribe(ChannelId(number), FromEarliest(), good, credit=1_000)
        bad.fails = ("deliver", "closed")
        await publish(realm, ChannelId(number), body([b"a"]))
        await pass_time(0.1)

        assert (await realm.subscriptions.durable(ChannelId(number), "d")).clients == ()
        await goes_on(realm, ChannelId(number), good)


def fail(*_: object) -> Never:
    raise Unforeseen


@simulated
async def test_a_browse_ends_even_if_its_outlet_cannot_be_told() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await publish(realm, ChannelId(number), body([b"a"]))
        bad, good = Client("bad"), Client("good")
        bad.fails = ("finished",)
        with capture_logs() as logged:
            for client in (bad, good):
                await realm.subscriptions.subscribe(
                    ChannelId(number), FromEarliest(), client, credit=1_000, browse=True
                )
            await good.at_end.wait()

        assert is_told(bad, logged)
        assert good.ids == [0]


@simulated
async def test_a_subscription_that_fails_on_a_recall_ends_and_the_order_stays() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await durable(realm, ChannelId(number), "serial", strict_order=True)
        bad, good = Client("bad"), Client("good")
        seat = await realm.subscriptions.attach(ChannelId(number), "d", bad, window=10, pull=False)
        await publish(realm, ChannelId(number), body([b"a", b"b", b"c"]))
        await pass_time(0.1)
        with capture_logs() as logged:
            realm.subscriptions.settle(
                seat.number, (Span(0, 1),), lambda *_: None, roll_back=True, previous=False
            )
            await pass_time(0.1)
        assert is_told(bad, logged)

        await realm.subscriptions.attach(ChannelId(number), "d", good, window=10, pull=False)
        await pass_time(0.1)
        assert good.ids == [0, 1, 2]


@simulated
async def test_a_failing_offer_ends_all_subscriptions_of_the_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        other_store = (await realm.create_channel("other", Definition(type="persistent"))).channel
        await durable(realm, ChannelId(number), "shared")
        seat, plain, good = Client("seat"), Client("plain"), Client("good")
        await realm.subscriptions.attach(ChannelId(number), "d", seat, window=10, pull=False)
        await realm.subscriptions.subscribe(ChannelId(number), FromEarliest(), plain, credit=10)
        await realm.subscriptions.subscribe(other_store, FromEarliest(), good, credit=10)
        broken, offer = realm.directory.channels[number], ChannelMachine.offer

        def offers(channel: ChannelMachine, below: int | None = None, **when: int) -> Any:
            return fail() if channel is broken else offer(channel, below, **when)

        with capture_logs() as logged, monkeypatch.context() as patch:
            patch.setattr(ChannelMachine, "offer", offers)
            await publish(realm, ChannelId(number), body([b"a"]))
            await pass_time(0.1)

        assert is_told(seat, logged)
        assert str(plain.reason) == str(seat.reason)
        await goes_on(realm, other_store, good)
        again = Client("again")
        await realm.subscriptions.attach(ChannelId(number), "d", again, window=10, pull=False)
        await pass_time(0.1)
        assert again.ids == [0]


@simulated
async def test_a_failure_to_find_lanes_ends_the_seats_of_that_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await durable(realm, ChannelId(number), "serial", order_by="sku")
        bad, good = Client("bad"), Client("good")
        await realm.subscriptions.attach(ChannelId(number), "d", bad, window=10, pull=False)
        await realm.subscriptions.subscribe(ChannelId(number), FromEarliest(), good, credit=10)
        with capture_logs() as logged, monkeypatch.context() as patch:
            patch.setattr("penstock_server.runtime.delivery.delivery.lanes_of", fail)
            await publish(realm, ChannelId(number), body([b"a"], sku="x"))
            await pass_time(0.1)

        assert is_told(bad, logged)
        await goes_on(realm, ChannelId(number), good)
        again = Client("again")
        await realm.subscriptions.attach(ChannelId(number), "d", again, window=10, pull=False)
        await pass_time(0.1)
        assert again.ids == [0, 1]


@simulated
async def test_a_seat_with_a_slow_selector_gives_back_its_events() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        await durable(realm, ChannelId(number), "exclusive")
        slow, good = Client("slow"), Client("good")
        slow.selector = Selector("n = 1")
        await realm.subscriptions.attach(ChannelId(number), "d", slow, window=None, pull=False)

        async def takes_too_long(*_: object) -> Never:
            raise LimitReached("too long")

        choosing = realm.dispatch.choosing
        choosing.limits, choosing.offload = SelectorLimits(thread_above=0), takes_too_long
        await publish(realm, ChannelId(number), body([b"a"], n=1))
        await pass_time(0.1)
        assert isinstance(slow.reason, LimitReached)

        await realm.subscriptions.attach(ChannelId(number), "d", good, window=None, pull=False)
        await pass_time(0.1)
        assert good.ids == [0]


@simulated
async def test_a_failing_reply_affects_its_client_alone() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        answers: list[BaseException | None] = []

        def reply(span: Span, error: BaseException | None) -> None:
            answers.append(error)
            if error is None:
                raise Unforeseen

        realm.publish(
            ChannelId(number), [body([b"a"])], "", sequence=0, reply=reply, publisher="me@here"
        )
        realm.publish(
            ChannelId(number), [body([b"b"])], "", sequence=0, reply=fail, publisher="me@here"
        )
        with capture_logs() as logged:
            assert await publish(realm, ChannelId(number), body([b"c"])) == Span(2, 3)

        assert [type(answer) for answer in answers] == [type(None), Unforeseen]
        assert [line["event"] for line in logged] == ["answer.failed"]


@simulated
async def test_half_applied_facts_during_delivery_end_the_realm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with living(MemoryJournal(), MemoryBlobs(), breaks=Unforeseen) as realm:
        number = await opened(realm, type="transient")

        class Breaking(Client):
            def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
                """The next delivered event leaves the channel, and applying that fails."""
                super().deliver(rows, redeliveries)
                monkeypatch.setattr(realm.shard.state, "apply", fail)

        client = Breaking("c")
        await realm.subscriptions.subscribe(ChannelId(number), FromEarliest(), client, credit=10)
        await publish(realm, ChannelId(number), body([b"a"]))
        await realm.shard.ended.wait()

        with pytest.raises(RealmStopping):
            await publish(realm, ChannelId(number), body([b"b"]))
        assert client.ids == [0]


# --- as clients see it -------------------------------------------------------------------


def test_a_failed_native_client_is_told_and_another_gets_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliver = SubscriptionOutlet.deliver

    def fails_once(
        outlet: SubscriptionOutlet, rows: OutgoingBatch, redeliveries: Redeliveries
    ) -> None:
        if outlet.session == victims[0]:
            raise Unforeseen
        deliver(outlet, rows, redeliveries)

    monkeypatch.setattr(SubscriptionOutlet, "deliver", fails_once)
    with penstock.Realm() as realm, realm.connect() as session, realm.connect() as other_session:
        victims = [_session_of(session)]
        orders = session.channels.create("orders", type="persistent")
        remote = other_session.channels.get("orders").durables.create(
            "d", type="shared", start="earliest"
        )
        orders.publish(b"x")
        mine = orders.durables.get("d")
        with pytest.raises(Internal, match="incident"), mine.subscribe(timeout=10) as ended:
            ended.next_batch()

        assert session.is_connected
        with remote.subscribe(timeout=10) as subscription:
            batch = subscription.next_batch()
            assert batch is not None
            [event] = batch
            assert (event.data, event.redelivery_count) == (b"x", 1)
            event.ack()
        victims[0] = ""
        orders.publish(b"y")
        with mine.subscribe(timeout=10) as subscription:
            batch = subscription.next_batch()
            assert batch is not None
            assert [event.data for event in batch] == [b"y"]


def _session_of(session: penstock.Session) -> str:
    return str(session.session_id)
