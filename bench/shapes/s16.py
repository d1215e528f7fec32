"""S16: the latency of a publish while another client floods, for each pair of protocols."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

import penstock
from bench import doors
from bench.amqp_peers import Speaker
from bench.peers.penstock import Penstock, storage_of
from bench.processes import without_client
from bench.shape import Case, Figures, Missing
from penstock_testing.ports import free_port

CHANNELS = ("measured", "flooded")


class BesideAFlood:
    """One publish after the other: first without other clients, then next to a process that
    publishes to a separate channel as fast as it can."""

    name = "S16"
    title = f"sequential publishes of {doors.SIZE} B during a flood, by protocol"
    figure = "slowdown"
    higher_is_better = False
    contenders: Sequence[str] = ("penstock",)

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 3.0
        pairs = [
            (measured_door, flooding_door)
            for measured_door in doors.DOORS
            for flooding_door in doors.DOORS
        ]
        quick_pairs = pairs[2::2]
        return [
            Case(
                f"{measured_door} during {flooding_door} flood",
                "D1",
                {"door": measured_door, "flood": flooding_door, "seconds": seconds},
            )
            for measured_door, flooding_door in (quick_pairs if quick else pairs)
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := without_client("python-qpid-proton"):
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        http_port, amqp_port = free_port(), free_port()
        peer = Penstock("--http-port", str(http_port), "--amqp-port", str(amqp_port))
        with peer.serve(stored, case.durability) as server:
            with penstock.connect(server.url) as session:
                for name in CHANNELS:
                    session.channels.create(
                        name,
                        type="persistent",
                        retain_consumed=True,
                        storage=storage_of(case.durability),
                    ).durables.create("nobody", type="shared")
            speaker = Speaker(server.pid, amqp_port, CHANNELS[0])
            mine = doors.Job(
                case["door"],
                server.url,
                http_port,
                amqp=speaker,
                channel=CHANNELS[0],
                seconds=case["seconds"],
            )
            alone = doors.latencies_of(mine)
            with doors.flooding(
                replace(mine, door=case["flood"], channel=CHANNELS[1], seconds=0.0)
            ):
                beside = doors.latencies_of(mine)
        return beside | {
            "p50_us_before": alone["p50_us"],
            "p99_us_before": alone["p99_us"],
            "slowdown": beside["p50_us"] / alone["p50_us"],
        }


SHAPE = BesideAFlood()
