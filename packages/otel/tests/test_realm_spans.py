"""A realm makes spans of publishes, deliveries and settlements, in the traces of the events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from opentelemetry.trace import SpanKind

import penstock
from packages.mqtt.tests.clients import connected, heard
from packages.otel.tests.conftest import CURRENT, Spans, linked, parent, parent_of
from packages.server.tests.frontends.http.asking import Web, part
from penstock_core.vocabulary.identities import ChannelId
from penstock_mqtt.wire.packets import UnsubscribePacket
from penstock_otel.conventions import OPT_IN
from penstock_otel.realm_spans import RealmSpans

PATIENCE_S = 30.0


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, realm: penstock.Realm) -> Iterator[Spans]:
    """The spans of the realm, by the present conventions."""
    monkeypatch.setenv(OPT_IN, CURRENT)
    with_spans = Spans()
    realm_spans = RealmSpans(realm.running, with_spans.provider)
    realm_spans.begin()
    yield with_spans
    realm_spans.end()


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


def traced(*numbers: int, flags: str = "01") -> list[penstock.Event]:
    """Events that were published in the spans with these ids."""
    return [
        penstock.Event(b"a", properties={"traceparent": parent(number, flags)})
        for number in numbers
    ]


# --- deliveries ----------------------------------------------------------------------------


def test_a_delivery_of_a_durable_and_its_settlement_are_in_the_trace_of_the_event(
    recorded: Spans, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing")
    orders.publish_many(traced(7))
    with billing.subscribe(timeout=PATIENCE_S) as subscription:
        next(iter(subscription)).ack()
    billing.close()
    publish, deliver, ack = map(recorded.one, ("publish orders", "deliver orders", "ack orders"))

    assert {publish.kind, deliver.kind, ack.kind} == {SpanKind.SERVER}
    for span in (publish, deliver, ack):
        assert parent_of(span) == 7
        assert linked(span) == [7]
    attributes = dict(deliver.attributes or {})
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        "messaging.system": "penstock",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "billing",
        "messaging.consumer.group.name": "billing",
        "messaging.operation.name": "deliver",
        "messaging.operation.type": "receive",
        "messaging.message.id": "0",
    }
    assert (ack.attributes or {})["messaging.operation.type"] == "settle"
    assert (ack.attributes or {})["messaging.consumer.group.name"] == "billing"


def test_a_batch_of_several_contexts_links_to_them_and_a_settlement_to_its_own(
    recorded: Spans, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing", type="shared")
    orders.publish_many([*traced(1, 2, 2), penstock.Event(b"b")])
    first, second, third, untraced = billing.fetch(4, timeout=PATIENCE_S)
    second.ack()
    billing.flush()
    untraced.ack()
    billing.flush()
    first.rollback()
    billing.flush()
    third.ack()
    billing.close()
    deliver = recorded.named("deliver orders")[0]
    acks = recorded.named("ack orders")

    assert parent_of(deliver) is None
    assert linked(deliver) == [1, 2]
    assert (deliver.attributes or {})["messaging.batch.message_count"] == 4
    assert [linked(ack) for ack in acks] == [[2], [], [2]]
    assert [parent_of(ack) for ack in acks] == [2, None, 2]
    assert linked(recorded.one("rollback orders")) == [1]


@pytest.mark.parametrize("kind", ["plain", "queue", "pattern"])
def test_subscriptions_of_every_kind_have_deliveries(
    recorded: Spans, session: penstock.Session, orders: penstock.Channel, kind: str
) -> None:
    if kind == "queue":
        work = session.queues.create("work")
        work.push_many(traced(3))
        popped = work.pop(timeout=PATIENCE_S)
        assert popped is not None
        work.close()
    else:
        orders.publish_many(traced(3))
        subscribe = orders.subscribe if kind == "plain" else partial(session.subscribe, "ord*")
        with subscribe(start="earliest", timeout=PATIENCE_S) as subscription:
            next(iter(subscription))
    span = recorded.one("deliver work" if kind == "queue" else "deliver orders")

    assert parent_of(span) == 3
    assert "messaging.consumer.group.name" not in (span.attributes or {})


def test_a_redelivery_is_another_delivery(recorded: Spans, orders: penstock.Channel) -> None:
    billing = orders.durables.create("billing", type="shared")
    orders.publish_many(traced(4))
    for _ in range(2):
        (event,) = billing.fetch(1, timeout=PATIENCE_S)
        event.rollback()
        billing.flush()
    billing.close()

    assert [linked(span) for span in recorded.named("deliver orders")] == [[4], [4]]
    assert [linked(span) for span in recorded.named("rollback orders")] == [[4], [4]]


def test_a_rejection_is_a_span_in_the_trace_of_its_event(
    recorded: Spans, session: penstock.Session
) -> None:
    session.channels.create("dead")
    work = session.queues.create("work", dead_event_store="dead")
    work.push_many(traced(5))
    with work.reader(transactional=True, timeout=PATIENCE_S) as reader:
        reader.reject(next(iter(reader)), reason="odd")
    span = recorded.one("reject work")

    assert parent_of(span) == 5
    assert (span.attributes or {})["messaging.operation.name"] == "reject"


@pytest.mark.parametrize("flags", ["00", "02", None], ids=["not sampled", "random", "no context"])
def test_deliveries_without_a_sampled_context_are_no_spans(
    recorded: Spans, orders: penstock.Channel, flags: str | None
) -> None:
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event(b"a")] if flags is None else traced(1, 2, flags=flags))
    with billing.subscribe(timeout=PATIENCE_S) as subscription:
        next(iter(subscription)).ack()
    billing.close()

    # Requests without any context begin a trace, as the sampler of the environment decides.
    assert recorded.names() == ({"publish orders", "ack orders"} if flags is None else set())


def test_a_browse_is_no_delivery(recorded: Spans, orders: penstock.Channel) -> None:
    orders.publish_many(traced(1))
    assert len(list(orders.browse())) == 1

    assert recorded.names() == {"publish orders"}


def test_a_context_in_a_file_that_keeps_it_in_its_overflow_column_is_found(
    recorded: Spans, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    billing = orders.durables.create("billing", type="shared")
    orders.publish_many([penstock.Event(b"a", properties={"n": n}) for n in range(2_000)])
    orders.publish_many(traced(6))
    (channel_id,) = realm.running.directory.channels
    assert realm.loop.call(realm.running.sealer.seal(ChannelId(channel_id), everything=True))
    for _ in billing.fetch(2_001, timeout=PATIENCE_S):
        pass
    billing.close()

    assert [span for span in recorded.named("deliver orders") if linked(span) == [6]]


# --- requests over HTTP --------------------------------------------------------------------


def test_a_fetch_and_its_settlement_over_http_are_in_the_trace_of_the_event(
    recorded: Spans, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    orders.durables.create("billing", type="shared")
    orders.publish_many(traced(1, 2))
    web, place = Web(realm.listen_http()), "channels/orders/durables/billing"
    fetched = web.send("POST", f"{place}/fetch", {"count": 5, "lease_ms": 60_000})
    for event_id in (1, 0):
        web.send("POST", f"{place}/leases/{fetched['lease']}/ack", {"ids": [event_id]})

    assert linked(recorded.one("fetch orders")) == [1, 2]
    assert [parent_of(span) for span in recorded.named("ack orders")] == [2, 1]
    assert recorded.named("deliver orders") == []


def test_a_pop_over_http_is_in_the_trace_of_the_event(
    recorded: Spans, realm: penstock.Realm, session: penstock.Session
) -> None:
    session.queues.create("jobs").push_many(traced(8))
    Web(realm.listen_http()).send("POST", "queues/jobs/pop", {"count": 1})

    assert parent_of(recorded.one("pop jobs")) == 8
    assert recorded.named("deliver jobs") == []


@pytest.fixture
def team(session: penstock.Session) -> str:
    """The path of a durable over a pattern, whose two channels have traced events with equal
    ids."""
    channels = [session.channels.create(name) for name in ("shop/north", "shop/south")]
    session.durables.create("shop/*", "team")
    for channel, numbers in zip(channels, ((1, 2), (3, 4)), strict=True):
        channel.publish_many(traced(*numbers))
    return f"durables/{part('shop/*')}/team"


def test_settlements_of_a_lease_over_a_pattern_link_to_the_events_of_each_channel(
    recorded: Spans, realm: penstock.Realm, team: str
) -> None:
    web = Web(realm.listen_http())
    fetched = web.send("POST", f"{team}/fetch", {"count": 10, "lease_ms": 60_000})
    leases = f"{team}/leases/{fetched['lease']}"
    web.send("POST", f"{leases}/ack", {"ids": {"shop/north": [1], "shop/south": [0]}})
    web.send("POST", f"{leases}/rollback", {"ids": {"shop/south": [1]}})
    web.send("POST", f"{leases}/ack", {"ids": {"shop/north": [0]}})

    assert sorted(linked(recorded.one("fetch shop/*"))) == [1, 2, 3, 4]
    acks = recorded.named("ack shop/*")
    assert [sorted(linked(ack)) for ack in acks] == [[2, 3], [1]]
    assert [parent_of(ack) for ack in acks] == [None, 1]
    assert linked(recorded.one("rollback shop/*")) == [4]
    assert recorded.named("deliver shop/north") == []


def test_a_settlement_of_a_whole_lease_over_a_pattern_links_to_all_its_events(
    recorded: Spans, realm: penstock.Realm, team: str
) -> None:
    web = Web(realm.listen_http())
    fetched = web.send("POST", f"{team}/fetch", {"count": 10, "lease_ms": 60_000})
    web.send("POST", f"{team}/leases/{fetched['lease']}/ack", {"all": True})

    assert sorted(linked(recorded.one("ack shop/*"))) == [1, 2, 3, 4]


# --- clients of MQTT without a session -----------------------------------------------------


def test_each_client_of_mqtt_has_a_span_for_the_messages_that_it_got(
    recorded: Spans, realm: penstock.Realm, session: penstock.Session
) -> None:
    url = realm.listen_mqtt()
    # The last one gets no message, and the one before a message without a sampled context.
    filters = [("a/+",), ("a/+",), ("a/2",), ("a/1", "+/2"), ("a/3",), ("b",)]
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(url)) for _ in filters]
        for client, texts in zip(clients, filters, strict=True):
            client.subscribe(*texts, qos=0)
        events = [
            penstock.Event(b"", properties={"topic": "a/1", "traceparent": parent(1)}),
            penstock.Event(b"", properties={"topic": "a/2", "traceparent": parent(2)}),
            penstock.Event(b"", properties={"topic": "a/3", "traceparent": parent(3, "00")}),
        ]
        session.channels.get("mqtt").publish_many(events)
        counts = [len(heard(client)) for client in clients]
        spans = recorded.named("deliver mqtt")

    assert counts == [3, 3, 1, 2, 1, 0]
    attributes = [dict(span.attributes or {}) for span in spans]
    assert len({values["messaging.client.id"] for values in attributes}) == len(spans)
    described = [
        (
            linked(span),
            parent_of(span),
            values.get("messaging.batch.message_count", 1),
            values.get("messaging.message.id"),
        )
        for span, values in zip(spans, attributes, strict=True)
    ]
    # The realm serves the clients in any order.
    assert sorted(described, key=lambda description: str(description[2])) == [
        ([2], 2, 1, "1"),
        ([1, 2], None, 2, None),
        ([1, 2], None, 3, None),
        ([1, 2], None, 3, None),
    ]


def test_a_message_of_mqtt_without_a_receiver_has_no_delivery(
    recorded: Spans, realm: penstock.Realm, session: penstock.Session
) -> None:
    with connected(realm.listen_mqtt()) as client:
        client.subscribe("a", qos=0)
        properties = {"topic": "a", "traceparent": parent(1)}
        session.channels.get("mqtt").publish(b"", properties=properties)
        assert len(heard(client)) == 1
        client.send(UnsubscribePacket(9, ("a",)))
        client.receive()
        session.channels.get("mqtt").publish(b"", properties=properties)
        assert heard(client) == []

    assert len(recorded.named("deliver mqtt")) == 1


def test_spans_of_a_batch_for_very_many_clients_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
    recorded: Spans,
    realm: penstock.Realm,
    session: penstock.Session,
) -> None:
    monkeypatch.setattr("penstock_otel.realm_spans.RECEIVERS_MAX", 2)
    url = realm.listen_mqtt()
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(url)) for _ in range(3)]
        for client in clients:
            client.subscribe("a", qos=0)
        properties = {"topic": "a", "traceparent": parent(1)}
        session.channels.get("mqtt").publish(b"", properties=properties)
        counts = [len(heard(client)) for client in clients]

    assert counts == [1, 1, 1]
    assert len(recorded.named("deliver mqtt")) == 2


# --- names ---------------------------------------------------------------------------------


def test_old_names_of_deliveries(
    monkeypatch: pytest.MonkeyPatch, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    monkeypatch.delenv(OPT_IN, raising=False)
    recorded = Spans()
    RealmSpans(realm.running, recorded.provider).begin()
    orders.publish_many(traced(9))
    with orders.subscribe(start="earliest", timeout=PATIENCE_S) as subscription:
        next(iter(subscription))
    span = recorded.one("orders receive")

    assert span.kind is SpanKind.SERVER
    assert (span.attributes or {})["messaging.operation"] == "receive"
    assert "messaging.operation.name" not in (span.attributes or {})


# --- what goes wrong -----------------------------------------------------------------------


@pytest.mark.spec("E13")
@pytest.mark.parametrize(
    "value",
    [
        "broken",
        parent(1).upper(),
        f"00-{'0' * 32}-{1:016x}-01",
        f"00-{'0' * 31}1-{0:016x}-01",
        f"ff-{parent(1)[3:]}",
        f"{parent(1)}-more",
        "x" * 100_000,
        f"cc-{parent(1)[3:]}-{'x' * 100_000}",
    ],
    ids=["text", "upper case", "no trace", "no span", "ff", "more", "100 KB", "100 KB of cc"],
)
def test_a_malformed_context_travels_and_is_in_no_span(
    recorded: Spans, orders: penstock.Channel, value: str
) -> None:
    orders.publish(b"a", properties={"traceparent": value, "tracestate": "a=1"})
    with orders.subscribe(start="earliest", timeout=PATIENCE_S) as subscription:
        event = next(iter(subscription))
    publish = recorded.one("publish orders")

    assert event.properties == {"traceparent": value, "tracestate": "a=1"}
    assert recorded.names() == {"publish orders"}
    assert (parent_of(publish), linked(publish)) == (None, [])


@pytest.mark.spec("E13")
def test_a_context_of_a_later_version_counts(recorded: Spans, orders: penstock.Channel) -> None:
    orders.publish(b"a", properties={"traceparent": f"cc-{parent(1)[3:]}-later"})

    assert parent_of(recorded.one("publish orders")) == 1


@pytest.mark.spec("E13")
def test_a_state_of_very_many_members_travels_and_is_in_no_span(
    recorded: Spans, orders: penstock.Channel
) -> None:
    state = ",".join(f"k{number}=1" for number in range(10_000))
    orders.publish(b"a", properties={"traceparent": parent(1), "tracestate": state})
    (event,) = orders.browse()
    (link,) = recorded.one("publish orders").links

    assert event.properties["tracestate"] == state
    assert dict(link.context.trace_state) == {}


def test_a_failing_tracer_disturbs_no_client(
    monkeypatch: pytest.MonkeyPatch,
    recorded: Spans,
    realm: penstock.Realm,
    orders: penstock.Channel,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("no span")

    billing = orders.durables.create("billing")
    with monkeypatch.context() as broken:
        broken.setattr("opentelemetry.sdk.trace.Tracer.start_span", fail)
        orders.publish_many(traced(1))
        with billing.subscribe(timeout=PATIENCE_S) as subscription:
            next(iter(subscription)).ack()
        billing.close()
    orders.publish_many(traced(2))

    assert [incident.task for incident in realm.running.incidents.open()] == ["spans"]
    assert parent_of(recorded.one("publish orders")) == 2


def test_the_incident_of_a_failing_tracer_closes_after_it_has_recovered(
    monkeypatch: pytest.MonkeyPatch, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    recorded = Spans()
    realm_spans = RealmSpans(realm.running, recorded.provider)
    realm_spans.begin()
    incidents = []
    with monkeypatch.context() as broken:
        broken.setattr("opentelemetry.sdk.trace.Tracer.start_span", None)
        orders.publish_many(traced(1))
    for _ in range(2):
        incidents.append([incident.task for incident in realm.running.incidents.open()])
        realm_spans.close_incident()

    assert incidents == [["spans"], ["spans"]]
    assert realm.running.incidents.open() == []


def test_nothing_is_recorded_after_the_end(
    recorded: Spans, realm: penstock.Realm, orders: penstock.Channel
) -> None:
    RealmSpans(realm.running, recorded.provider).end()
    orders.publish_many(traced(1))
    with orders.subscribe(start="earliest", timeout=PATIENCE_S) as subscription:
        next(iter(subscription))

    assert recorded.names() == set()
