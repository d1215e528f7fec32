"""The metrics for Prometheus: the numbers of ``info``, for a limited number of channels."""

from __future__ import annotations

import re
import shutil
import ssl
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography import x509

import penstock
from packages.server.tests.frontends.http.asking import Web
from packages.server.tests.frontends.http.samples import Samples, read, scraped, value_of
from penstock_core.api.requesting import OpenReplyQueue
from penstock_core.api.transfers import BeginBackup, EndBackup
from tests.access.realms import authority_in, realm_with_tls
from tests.asking import ask


@pytest.mark.spec("H3")
def test_leased_events_are_counted(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")
    jobs.push_many([penstock.Event(b"x")] * 5)
    before = scraped(web)

    leased = web.send("POST", "queues/jobs/fetch", {"count": 3, "lease_ms": 600_000})
    held = scraped(web)
    web.send("POST", f"queues/jobs/leases/{leased['lease']}/ack", {"ids": [0]})
    partly = scraped(web)
    web.send("POST", f"queues/jobs/leases/{leased['lease']}/rollback", {"all": True})

    names = ("penstock_http_leases", "penstock_http_leased_events")
    shown = [
        [value_of(one_scrape, name) for name in names]
        for one_scrape in (before, held, partly, scraped(web))
    ]
    assert shown == [[0, 0], [1, 3], [1, 2], [0, 0]]


def test_counters_are_those_of_the_channel(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("billing")
    orders.publish_many([penstock.Event(b"x")] * 5)
    orders.purge(start=0, end=1)

    samples = scraped(web)

    store = {"name": "orders", "kind": "channel"}
    assert value_of(samples, "penstock_published_total", **store) == 5
    assert value_of(samples, "penstock_left_total", **store, cause="purged") == 2
    assert value_of(samples, "penstock_events", **store) == 3
    assert value_of(samples, "penstock_events_bytes", **store) > 0
    assert 0 <= value_of(samples, "penstock_oldest_event_seconds", **store) < 60
    durable = {"channel": "orders", "durable": "billing"}
    assert value_of(samples, "penstock_durable_outstanding_events", **durable) == 3
    assert value_of(samples, "penstock_connections") == 1
    assert value_of(samples, "penstock_realm_up") == 1


@pytest.mark.spec("T8")
def test_causes_are_there_from_zero_on(web: Web, session: penstock.Session) -> None:
    """A series that begins with its first burst has no increase."""
    session.channels.create("dead")
    session.channels.create("orders", dead_event_store="dead").durables.create("billing")

    samples = scraped(web)

    store = {"name": "orders", "kind": "channel"}
    for cause in ("consumed", "dead", "expired", "evicted", "purged", "quarantined"):
        assert value_of(samples, "penstock_left_total", **store, cause=cause) == 0
    for durable, cause in (
        ("", "expired"),
        ("", "evicted"),
        ("billing", "redelivery_limit"),
        ("billing", "rejected"),
    ):
        assert value_of(samples, "penstock_dead_total", **store, durable=durable, cause=cause) == 0
    of_dead = [labels for name, labels in samples if name == "penstock_dead_total"]
    assert len(of_dead) == 4, "nothing dies where there is no dead event store"


def test_connections_are_counted_as_they_come_and_go(realm: penstock.Realm, web: Web) -> None:
    before = scraped(web)
    with realm.connect(), realm.connect():
        during = scraped(web)
    after = scraped(web)

    def counted(samples: Samples, what: str) -> float:
        return value_of(samples, f"penstock_connections_{what}_total")

    assert counted(during, "opened") == counted(before, "opened") + 2
    assert counted(during, "closed") == counted(before, "closed")
    assert counted(after, "opened") == counted(during, "opened")
    assert counted(after, "closed") == counted(before, "closed") + 2


def test_process_and_disk_metrics_are_exported(web: Web, tmp_path: Path) -> None:
    in_memory = scraped(web)
    assert value_of(in_memory, "process_resident_memory_bytes") > 0
    assert value_of(in_memory, "process_max_fds") >= value_of(in_memory, "process_open_fds") > 0
    assert ("penstock_disk_bytes", frozenset()) not in in_memory

    with penstock.Realm(tmp_path / "data") as realm:
        on_disk = scraped(Web(realm.listen_http()))
    usage = shutil.disk_usage(tmp_path)
    assert value_of(on_disk, "penstock_disk_bytes") == usage.total
    assert 0 < value_of(on_disk, "penstock_disk_free_bytes") <= usage.total


def test_bytes_and_refusals_are_counted(
    realm: penstock.Realm, web: Web, session: penstock.Session
) -> None:
    def refused(samples: Samples, code: str) -> float:
        return samples.get(("penstock_refused_total", frozenset({("code", code)})), 0.0)

    orders = session.channels.create("orders")
    before = scraped(web)

    orders.publish(b"x" * 10_000)
    assert [event.data for event in orders.browse()] == [b"x" * 10_000]
    with pytest.raises(penstock.NameDoesNotExist):
        session.channels.get("nowhere")
    assert web.ask("GET", "channels/nowhere").status == 404
    after = scraped(web)

    for metric in ("penstock_received_bytes_total", "penstock_sent_bytes_total"):
        grown = value_of(after, metric, protocol="native") - value_of(
            before, metric, protocol="native"
        )
        assert 10_000 < grown < 20_000, metric
        assert value_of(after, metric, protocol="amqp") == 0
    over_http = value_of(after, "penstock_sent_bytes_total", protocol="http")
    assert over_http - value_of(before, "penstock_sent_bytes_total", protocol="http") > 5_000, (
        "the metrics"
    )
    received_bytes = value_of(after, "penstock_received_bytes_total", protocol="http")
    assert (
        100
        < received_bytes - value_of(before, "penstock_received_bytes_total", protocol="http")
        < 10_000
    )
    code = "name-does-not-exist"
    assert refused(after, code) == refused(before, code) + 2


def test_the_age_of_the_newest_complete_backup_is_exported(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        backups = realm.running.backups
        start_us = backups.newest_us
        begun = ask(session, BeginBackup())
        ask(session, EndBackup(begun["backup"]))  # as a copy of sealed files ends
        assert backups.newest_us == start_us

        begun = ask(session, BeginBackup())
        ask(session, EndBackup(begun["backup"], is_complete=True))
        assert backups.newest_us == begun["at_us"] > start_us

        session.back_up(tmp_path / "backup")
        assert backups.newest_us > begun["at_us"]
        age_s = value_of(scraped(Web(realm.listen_http())), "penstock_backup_age_seconds")
        assert 0 <= age_s <= (realm.running.clock.now_us() - backups.newest_us) / 1_000_000


def test_delivery_times_are_exported_per_durable(web: Web, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    billing, idle = orders.durables.create("billing"), orders.durables.create("idle")
    orders.publish_many([penstock.Event(b"x")] * 3)
    orders.publish(b"y")
    for event in billing.fetch(4, timeout=5.0):
        event.rollback()
    assert all(event.redelivered for event in billing.fetch(4, timeout=5.0))

    samples = scraped(web)

    metric, durable = (
        "penstock_durable_delivery_seconds",
        {"channel": "orders", "durable": "billing"},
    )
    assert value_of(samples, f"{metric}_count", **durable) == 4, "what comes again does not count"
    assert value_of(samples, f"{metric}_bucket", **durable, le="+Inf") == 4
    assert 0 <= value_of(samples, f"{metric}_sum", **durable) < 600
    named = {dict(labels)["durable"] for name, labels in samples if name == f"{metric}_count"}
    assert named == {"billing"} != {idle.name}


@pytest.mark.slow
def test_the_expiry_of_the_certificate_is_exported(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    with realm_with_tls(tmp_path, authority) as realm:
        with realm.connect() as session:
            session.access.grant("bob@*", "monitor")
        web = Web(realm.listen_http(), tls=ssl.create_default_context(cafile=str(authority.file)))
        signed_in = {"authorization": "Basic " + b64encode(b"bob:secret").decode()}
        samples = read(web.ask("GET", "/metrics", headers=signed_in))
    certificate = x509.load_pem_x509_certificate((tmp_path / "realm.pem").read_bytes())

    ends_s = value_of(samples, "penstock_tls_certificate_end_seconds")
    assert ends_s == certificate.not_valid_after_utc.timestamp()


@pytest.mark.spec("T6", "T10")
def test_dead_events_are_counted_while_another_durable_holds_them(
    web: Web, session: penstock.Session
) -> None:
    session.channels.create("dead")
    orders = session.channels.create("orders", dead_event_store="dead", capacity=5)
    billing = orders.durables.create("billing", max_deliveries=1)
    orders.durables.create("audit")
    orders.publish_many([penstock.Event(b"x")] * 3)
    for event in billing.fetch(3, timeout=5.0):
        event.rollback()
    billing.flush()
    store = {"name": "orders", "kind": "channel"}

    samples = scraped(web)
    limit = {"durable": "billing", "cause": "redelivery_limit"}
    assert value_of(samples, "penstock_dead_total", **store, **limit) == 3
    assert value_of(samples, "penstock_left_total", **store, cause="dead") == 0

    orders.publish_many([penstock.Event(b"x")] * 4)
    samples = scraped(web)
    assert value_of(samples, "penstock_dead_total", **store, durable="", cause="evicted") == 2
    assert value_of(samples, "penstock_left_total", **store, cause="dead") == 2
    assert session.channels.get("dead").info().events == 5


def test_queues_readers_are_their_durable(web: Web, session: penstock.Session) -> None:
    jobs = session.queues.create("jobs")
    jobs.push_many([penstock.Event(b"x")] * 3)

    samples = scraped(web)

    assert value_of(samples, "penstock_durable_outstanding_events", channel="jobs", durable="") == 3


def test_in_flight_events_are_counted_under_the_old_name_too(
    web: Web, session: penstock.Session
) -> None:
    orders = session.channels.create("orders")
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event(b"x")] * 3)

    with billing.subscribe(window=2) as subscription:
        assert subscription.next_batch(30) is not None
        samples, shown = scraped(web), web.get("channels/orders/durables/billing")

    labels = {"channel": "orders", "durable": "billing"}
    assert value_of(samples, "penstock_durable_in_flight_events", **labels) == 2
    assert value_of(samples, "penstock_durable_pending_events", **labels) == 2
    assert (shown["outstanding"], shown["in_flight"], shown["pending"]) == (3, 2, 2)


def test_how_long_the_disk_takes_is_a_histogram(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        for _ in range(5):
            orders.publish(b"x")

        samples = scraped(Web(realm.listen_http()))

    count = value_of(samples, "penstock_journal_sync_seconds_count")
    assert count >= 6
    assert value_of(samples, "penstock_journal_sync_seconds_bucket", le="+Inf") == count
    assert 0 < value_of(samples, "penstock_journal_sync_seconds_sum") < 60


def test_only_so_many_channels_have_names() -> None:
    with penstock.Realm(http__channels_named_max=2) as realm, realm.connect() as session:
        for name in ("a", "b", "c", "d"):
            session.channels.create(name).durables.create("x")

        samples = scraped(Web(realm.listen_http()))

    named = {dict(labels).get("name") for name, labels in samples if name == "penstock_events"}
    durables = [labels for name, labels in samples if name == "penstock_durable_clients"]
    assert named == {"a", "b"}
    assert len(durables) == 2
    assert value_of(samples, "penstock_unnamed_stores") == 2


@pytest.mark.spec("R2")
def test_temporary_queues_are_counted_together(web: Web, session: penstock.Session) -> None:
    session.queues.create("work")
    names = [f"temp-reply-{number:032x}" for number in range(3)]
    for name in names:
        ask(session, OpenReplyQueue(name))
        session.queues.get(name).push(b"reply")

    text = web.ask("GET", "/metrics").data.decode()
    samples = scraped(web)

    assert not [name for name in names if name in text]
    shown = ("penstock_temporary_stores", "penstock_temporary_events", "penstock_queues")
    assert [value_of(samples, name) for name in shown] == [3, 3, 1]
    assert value_of(samples, "penstock_temporary_events_bytes") > 0


def test_a_scrape_changes_nothing(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders").publish(b"x")

    first, second = scraped(web), scraped(web)

    # Its own request and answer have bytes, too
    changing = re.compile("seconds|_created|^process_|_bytes_total")
    assert {key: value for key, value in first.items() if not changing.search(key[0])} == {
        key: value for key, value in second.items() if not changing.search(key[0])
    }
