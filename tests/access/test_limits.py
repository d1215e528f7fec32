"""Limits of connections and of the realm: named, and no harm to the session."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.columns.events.batch import EventBatch
from penstock_core.vocabulary.errors import CannotConnect, LimitReached, PenstockError
from penstock_server.runtime.access.quota import ConnectionLimits, Quota, RequestPace, RequestRate


def test_a_realm_has_no_more_channels_than_it_may() -> None:
    with penstock.Realm(limits__channels_max=2) as realm, realm.connect() as session:
        session.channels.create("a")
        session.queues.create("b")
        with pytest.raises(LimitReached, match=r"limits\.channels_max"):
            session.channels.create("c")

        session.channels.delete("a")
        session.channels.create("c").publish(b"x")


def test_a_user_has_no_more_connections_than_it_may() -> None:
    with penstock.Realm(limits__connections_per_user_max=1) as realm:
        url = realm.listen().replace("://", "://alice@")
        with penstock.connect(url) as session:
            with pytest.raises(CannotConnect, match=r"limits\.connections_per_user_max"):
                penstock.connect(url)
            with penstock.connect(url.replace("alice", "bob")):
                session.info()
        with penstock.connect(url):
            pass


def test_a_channel_has_no_more_durables_than_it_may(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        for name in "abc":
            orders.durables.create(name)
    with (
        penstock.Realm(tmp_path, limits__durables_per_channel_max=2) as realm,
        realm.connect() as session,
    ):
        orders = session.channels.get("orders")
        with pytest.raises(LimitReached, match=r"limits\.durables_per_channel_max"):
            orders.durables.create("d")
        orders.publish(b"x")
        for name in "abc":  # those there are go on
            with orders.durables.get(name).subscribe(timeout=10) as subscription:
                next(iter(subscription)).ack()

        orders.durables.delete("a")
        with pytest.raises(LimitReached, match="orders has 2 durables"):
            orders.durables.create("d")
        orders.durables.delete("b")
        assert orders.durables.create("d").info().name == "d"


def test_an_import_brings_no_more_durables_than_a_channel_may_have(tmp_path: Path) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        for name in "abc":
            orders.durables.create(name)
        session.channels.export("orders", tmp_path / "orders")
    with penstock.Realm(limits__durables_per_channel_max=2) as realm, realm.connect() as session:
        with pytest.raises(LimitReached, match=r"limits\.durables_per_channel_max"):
            session.channels.import_from(tmp_path / "orders")

        assert session.channels.list() == []


def test_a_connection_has_no_more_subscriptions_than_it_may() -> None:
    with (
        penstock.Realm(limits__subscriptions_per_connection_max=2) as realm,
        realm.connect() as session,
        realm.connect() as second_session,
    ):
        orders = session.channels.create("orders", type="persistent")
        orders.publish(b"x")
        durable = orders.durables.create("d", start="earliest")
        with orders.subscribe(start="earliest", timeout=10) as kept:
            assert stored(kept.next_batch()) == [b"x"]
            with durable.subscribe(timeout=10) as ended:
                assert ended.next_batch() is not None
                with pytest.raises(LimitReached, match=r"subscriptions_per_connection_max"):
                    received(orders)

                orders.publish(b"y")
                assert stored(kept.next_batch()) == [b"y"]
                second_orders = second_session.channels.get("orders")
                with second_orders.subscribe(start="earliest", timeout=10) as one:
                    assert stored(one.next_batch()) == received(second_orders) == [b"x", b"y"]
            assert received(orders) == [b"x", b"y"]


def stored(batch: EventBatch | None) -> list[bytes]:
    assert batch is not None
    return [bytes(event.data) for event in batch]


def received(channel: penstock.Channel) -> list[bytes]:
    with channel.subscribe(start="earliest", timeout=10) as subscription:
        return stored(subscription.next_batch())


def test_more_requests_a_second_than_allowed_are_refused_and_the_session_continues() -> None:
    with penstock.Realm(limits__requests_per_s_max=20) as realm, realm.connect() as session:
        with pytest.raises(LimitReached, match=r"limits\.requests_per_s_max"):
            _ask_often(session)

        assert session.is_connected


def _ask_often(session: Session) -> None:
    for _ in range(100):
        session.info()


def test_a_rate_allows_a_burst_of_a_second_and_fills_up_again() -> None:
    rate = RequestRate(10)
    for _ in range(10):
        rate.take(1_000_000)
    with pytest.raises(LimitReached):
        rate.take(1_050_000)

    rate.take(1_100_000)
    with pytest.raises(LimitReached):
        rate.take(1_100_000)


class HandClock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.now_us()


def test_a_paced_client_waits_until_its_rate_allows_more() -> None:
    clock = HandClock()
    pace = RequestPace(10, clock)
    pace.count(9)
    assert not pace.is_ahead
    pace.count(11)
    assert pace.is_ahead

    clock.us += 1_050_000
    assert pace.is_ahead
    clock.us += 50_000
    assert not pace.is_ahead


def test_without_a_limit_clients_never_wait() -> None:
    pace = RequestPace(0, HandClock())
    pace.count(1_000_000)

    assert not pace.is_ahead


def test_bytes_that_are_not_answered_yet_are_bounded() -> None:
    quota = Quota(ConnectionLimits(in_flight_bytes_max=100))
    quota.begin_request(1, 60, 0)
    with pytest.raises(LimitReached, match=r"limits\.in_flight_bytes_max"):
        quota.begin_request(2, 50, 0)

    quota.end_request(1)
    quota.end_request(2)
    quota.begin_request(3, 500, 0)  # alone it is let through
    with pytest.raises(LimitReached):
        quota.begin_request(4, 1, 0)
    quota.begin_request(5, 0, 0)


def test_a_reused_request_number_frees_no_bytes_of_an_open_request() -> None:
    """A peer might number everything alike, and have each refusal make room for more."""
    quota = Quota(ConnectionLimits(in_flight_bytes_max=100))
    quota.begin_request(1, 80, 0)
    for _ in range(2):
        with pytest.raises(LimitReached):
            quota.begin_request(1, 80, 0)
        quota.end_request(1)
    quota.begin_request(1, 0, 0)
    quota.end_request(1)
    with pytest.raises(LimitReached):
        quota.begin_request(2, 80, 0)
    quota.end_request(2)

    quota.end_request(1)
    quota.begin_request(3, 100, 0)


def test_too_many_bytes_at_once_are_refused_and_the_session_continues() -> None:
    with penstock.Realm(limits__in_flight_bytes_max=1_000) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        refused: list[PenstockError] = []
        session.on_error(refused.append)
        orders.publish(b"x" * 5_000)  # alone
        orders.publish(b"x" * 5_000)

        assert orders.info().last_event_id == 1
        assert refused == []
