"""The blocking client's ends: with its block, with the interpreter, and after a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Session

pytestmark = pytest.mark.spec("D13")

LARGE = b"x" * 100_000


def test_what_was_acknowledged_in_the_block_is_when_it_ends(realm: penstock.Realm) -> None:
    with realm.connect() as other_session:
        orders = other_session.channels.create("orders")
        billing = orders.durables.create("billing")
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(100)])
        with realm.connect() as session:
            durable = session.channels.get("orders").durables.get("billing")
            for event in durable.fetch(50, 10.0):
                event.ack()

        assert (billing.info().outstanding, billing.info().clients) == (50, ())
        assert other_session.info().connections == 1


def test_an_acknowledgement_after_the_close_raises(session: Session) -> None:
    orders = session.channels.create("orders")
    billing = orders.durables.create("billing")
    orders.publish_many([penstock.Event(b"0"), penstock.Event(b"1")])
    fetched = billing.fetch(1, 10.0)[0]
    billing.close()
    with billing.subscribe(window=2) as subscription:
        batch = subscription.next_batch(10.0)
        assert batch is not None
        held = batch[0]

    for event in (fetched, held):
        with pytest.raises(penstock.SessionClosed, match="acknowledge events before you close"):
            event.ack()
        event.rollback()  # it is back already
    with pytest.raises(penstock.SessionClosed):
        batch.ack()
    assert billing.info().outstanding == 2


def test_an_acknowledgement_after_the_session_was_closed_raises(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"0")
        event = orders.durables.create("billing").fetch(1, 10.0)[0]

    with pytest.raises(penstock.SessionClosed, match="the session is closed"):
        event.ack()


def test_closing_what_was_open_on_a_closed_session_is_no_error(realm: penstock.Realm) -> None:
    session = realm.connect()
    orders = session.channels.create("orders")
    subscription = orders.subscribe().open()
    seat = orders.durables.create("billing").subscribe().open()
    session.close()

    subscription.close()
    seat.close()


ENDS = """
import sys, penstock

session = penstock.connect(sys.argv[1])
durable = session.channels.get("orders").durables.get("billing")
for event in durable.fetch(5, 10.0):
    event.ack()
"""


@pytest.mark.slow
@pytest.mark.process
def test_what_was_acknowledged_before_the_interpreter_ends_is(realm: penstock.Realm) -> None:
    with realm.connect() as other_session:
        orders = other_session.channels.create("orders")
        billing = orders.durables.create("billing")
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(10)])

        subprocess.run([sys.executable, "-c", ENDS, realm.listen()], check=True, timeout=60)

        info = billing.info()
        assert (info.outstanding, info.redelivered, info.clients) == (5, 0, ())


WAITS = """
import sys, threading, penstock

session = penstock.connect(sys.argv[1])
orders, work = session.channels.get("orders"), session.queues.get("work")
billing, taken = orders.durables.get("billing"), threading.Event()


def loop(subscription):
    for event in subscription:
        pass


def acknowledge():
    for event in billing.fetch(1, 10.0):
        taken.set()
        while True:
            event.ack()


for target in (
    lambda: loop(orders.subscribe()),
    lambda: loop(orders.durables.get("other").subscribe(auto_ack=True)),
    lambda: work.pop(),
    lambda: orders.durables.get("other").fetch(10, 100.0),
    lambda: loop(work.reader()),
    acknowledge,
):
    threading.Thread(target=target, daemon=True).start()
taken.wait()
"""


@pytest.mark.slow
@pytest.mark.process
def test_daemon_threads_that_use_a_session_end_with_the_interpreter_without_a_word(
    realm: penstock.Realm,
) -> None:
    with realm.connect() as other_session:
        orders = other_session.channels.create("orders")
        orders.durables.create("billing")
        orders.durables.create("other")
        other_session.queues.create("work")
        orders.publish(b"0")

        ended = subprocess.run(
            [sys.executable, "-c", WAITS, realm.listen()],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


STOPPED = """
import pathlib, sys, penstock

with penstock.connect(sys.argv[1]) as session:
    news = session.channels.get("news").subscribe().open()
    events = session.channels.get("orders").durables.get("billing").fetch(5, 10.0)
    print("ready", flush=True)
    sys.stdin.readline()  # stopped here
    for event in events:
        event.ack()
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.spec("J5")
def test_a_client_that_was_stopped_closes_in_order(realm: penstock.Realm) -> None:
    """Deliveries fill all buffers between the client and the realm. The client continues, and
    closes at once."""
    with realm.connect() as other_session:
        orders = other_session.channels.create("orders")
        billing = orders.durables.create("billing")
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(10)])
        news = other_session.channels.create("news", engine="jms", type="reliable")
        command = [sys.executable, "-c", STOPPED, realm.listen()]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            os.kill(client.pid, signal.SIGSTOP)
            for _ in range(20):
                news.publish_many([penstock.Event(LARGE) for _ in range(10)])
            client.stdin.write("\n")
            client.stdin.flush()
            os.kill(client.pid, signal.SIGCONT)
            assert client.wait(60) == 0

        eventually(lambda: billing.info().clients == ())
        assert billing.info().outstanding == 5
        eventually(lambda: news.info().events == 0)
        news.publish(b"nobody")
        assert news.info().events == 0
