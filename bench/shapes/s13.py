"""S13: from the start of a process to the first acknowledged event."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.processes import figures_of
from bench.shape import CONTENDERS, Broker, Case, Figures, Missing, peers
from bench.workload import Events, pool
from penstock.client.connection.threads import fast_loop

EMBEDDED = """
import json, sys, time
started = time.perf_counter()
import penstock
{more}
imported = time.perf_counter()
with penstock.Realm(sys.argv[1]) as realm, realm.connect() as session:
    channel = session.channels.create("orders", type="persistent")
    channel.publish(b"hello", properties={{"price": 9.5, "sku": "a-1", "quantity": 3}})
    done = time.perf_counter()
    print(json.dumps({{"first_ack_ms": (done - imported) * 1e3,
                      "import_ms": (imported - started) * 1e3}}))
"""


class FirstEvent:
    """A new, empty data directory each time; the event is on disk when it is acknowledged."""

    name = "S13"
    title = "time to the first acknowledged event"
    figure = "first_ack_ms"
    higher_is_better = False
    contenders: Sequence[str] = CONTENDERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        return [
            Case("embedded, after `import penstock`", "D2", {"more": ""}),
            Case(
                "embedded, after `from penstock import Realm`",
                "D2",
                {"more": "from penstock import Realm"},
            ),
            Case("server process, from its start", "D2"),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if not case.parameters:
            return _first_event_of_a_server(contender, directory)
        if contender != "penstock":
            raise Missing("cannot be embedded")
        program = EMBEDDED.format(more=case["more"])
        return figures_of([sys.executable, "-c", program, str(directory / "stored")])


def _first_event_of_a_server(contender: str, directory: Path) -> Figures:
    """Measure a separate server. The client is loaded before the clock starts, the server is
    not."""
    peer = peers()[contender]
    if reason := peer.missing():
        raise Missing(reason)
    stored = directory / "stored"
    stored.mkdir()
    events = pool(1, 1, 128)[0]

    async def publish(url: str) -> None:
        broker = await peer.connect(url)
        await _publish_first(broker, events)

    with asyncio.Runner(loop_factory=fast_loop) as runner:
        started_s = time.perf_counter()
        with peer.serve(stored, "D2") as server:
            listening_s = time.perf_counter()
            runner.run(publish(server.url))
            done_s = time.perf_counter()
    return {
        "first_ack_ms": (done_s - started_s) * 1e3,
        "listening_ms": (listening_s - started_s) * 1e3,
    }


async def _publish_first(broker: Broker, events: Events) -> None:
    try:
        await broker.prepare("D2", consumes=False)
        await broker.publish_one(events, 0)
    finally:
        await broker.close()


SHAPE = FirstEvent()
