"""S4: one serial durable and eight clients, one served at a time; the order is checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.processes import run_client
from bench.shape import Broker, Case, Figures, Missing, peers
from bench.shapes.s3 import SharedDurable


class SerialDurable:
    """As S3, but only one client has events at a time.

    ``in order``: events are delivered for the first time in order, over all clients. ``strict
    order``: they are also acknowledged in order, even after a rollback. One mode of ``nats`` allows
    one unacknowledged event, which is the only way for it to serve several clients in order; the
    other has one client and no other that could take over.
    """

    name = "S4"
    title = "serial durable, 8 clients, 1 % rolled back, order checked, 128 B"
    figure = "events_per_s"
    higher_is_better = True
    contenders = ("penstock", "nats", "nats, pulled", "nats, alone")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        cases = [
            Case(
                f"{label}, {shown}",
                durability,
                {"kind": kind, "source": "stored", "api": api, "batches": 4 if quick else batches},
            )
            for kind, label, batches in (
                ("serial", "in order", 200),
                ("strict", "strict order", 50),
            )
            for api, shown in (("columns", "batches of columns"), ("rows", "events"))
            for durability in (("D1",) if quick else ("D1", "D2"))
        ]
        return cases[::3] if quick else cases

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        peer, _, mode = contender.partition(", ")
        if mode == "alone" and case["kind"] == "strict":
            raise Missing(peers()[peer].missing() or "rolled-back events arrive out of order")
        batches = case["batches"]
        if peer != "penstock" and mode != "alone":
            batches = min(batches, 20)  # one event at a time would take minutes
        parameters = {**case.parameters, "mode": mode or "pushed", "batches": batches}
        return run_client(
            self.name, replace(case, parameters=parameters), peer, directory=directory
        )

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        return await SharedDurable().work(case, broker, server_pid)


SHAPE = SerialDurable()
