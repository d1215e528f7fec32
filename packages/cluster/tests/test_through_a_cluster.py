"""The client's suite may run through a cluster whose owner moves (``--through-a-cluster``): here a
life of one session does, so that this way does not rot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from packages.mqtt.tests.clients import connected
from packages.mqtt.tests.persistent_sessions import HOUR, back
from tests.patience import PATIENCE_S, until
from tests.through_a_cluster import ClusterRealm, all_through_a_cluster

pytestmark = pytest.mark.slow

MOVES = 3


@pytest.fixture
def realm() -> Iterator[ClusterRealm]:
    with all_through_a_cluster(moving_every_s=0.4) as realms:
        realm = realms()
        with realm:
            yield realm


@pytest.mark.spec("N3", "N4")
@pytest.mark.parametrize("by_url", [False, True])
def test_a_session_through_a_node_that_never_serves_outlives_many_owners(
    realm: ClusterRealm, *, by_url: bool
) -> None:
    before = ClusterRealm.moves
    with penstock.connect(realm.listen()) if by_url else realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        durable = orders.durables.create("all")
        with durable.subscribe(auto_ack=True) as subscription, orders.subscribe() as reading:
            published: list[int] = []
            seen: list[int] = []
            consumed: set[int] = set()
            reading.open()
            while ClusterRealm.moves < before + MOVES or len(published) < 100:
                published.append(orders.publish(b"%d" % len(published)))
                if (batch := reading.next_batch(0)) is not None:
                    seen += batch.event_ids.tolist()
            realm.moving_every_s = 1_000.0  # the rest is read of one owner
            while len(seen) < len(published):
                batch = reading.next_batch(PATIENCE_S)
                assert batch is not None
                seen += batch.event_ids.tolist()
            for event in subscription:
                assert event.event_id is not None
                consumed.add(event.event_id)
                if len(consumed) == len(published):
                    break

        assert published == list(range(len(published)))
        assert seen == published
        assert consumed == set(published)


def test_a_directory_has_its_cluster_again_when_it_is_opened_again(tmp_path: object) -> None:
    with all_through_a_cluster(moving_every_s=10) as realms:
        for n in range(2):
            with realms(f"{tmp_path}") as realm, realm.connect() as session:
                orders = session.channels.create("orders", type="persistent", if_missing=True)
                assert orders.publish(b"") == n


@pytest.mark.spec("M6", "M13")
def test_the_owner_hands_over_whenever_no_client_of_mqtt_is_connected(realm: ClusterRealm) -> None:
    url = realm.listen_mqtt()
    with connected(url, "reader", properties=HOUR) as reader:
        reader.subscribe("t")
    for number in range(MOVES):
        moves = ClusterRealm.moves
        with connected(url, "writer") as writer:
            assert writer.publish("t", b"%d" % number).reason == 0
        until(lambda moves=moves: ClusterRealm.moves > moves)  # type: ignore[misc]

    with back(url, "reader") as reader:
        assert [reader.receive().payload for _ in range(MOVES)] == [b"0", b"1", b"2"]
