"""S17: MQTT compared with other servers, by the processor time of the server for each message."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import mqtt_load, mqtt_peers
from bench.processes import figures_of
from bench.shape import Case, Figures, Missing

SHARES = ("penstock", "mosquitto", "rumqttd")
"""The contenders that support shared subscriptions."""


class Mqtt:
    """Clients of MQTT 3.1.1 that cost little, each kind of work with a new server."""

    name = "S17"
    title = f"MQTT 3.1.1, {mqtt_load.SIZE} B: server CPU per message"
    figure = "of_server_cpu_s_per_million"
    higher_is_better = False
    contenders: Sequence[str] = mqtt_peers.CONTENDERS

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 3.0
        few, many = (20, 40) if quick else (200, 1_000)

        def case(label: str, work: str, durability: str = "D1", **more: int) -> Case:
            return Case(label, durability, {"work": work, "seconds": seconds, **more})

        return [
            case("publish, QoS 0, 1 connection", "flooding"),
            *(
                case(
                    f"publish, QoS 1, {few} x window 10",
                    "publishing",
                    d,
                    connections=few,
                    window=10,
                )
                for d in ("D1", "D2")
            ),
            case(f"publish, QoS 1, {many:,} x window 1", "publishing", connections=many, window=1),
            *(
                case(
                    f"fan-out to 100, {count} at a time, per delivery",
                    "fanning",
                    subscribers=100,
                    window=count,
                )
                for count in (50, 1)
            ),
            case(
                f"shared subscription, QoS 1, {many:,} to 5",
                "sharing",
                connections=many,
                window=1,
                subscribers=5,
            ),
            case("round trip, QoS 1", "returning"),
        ]

    def versions(self) -> Mapping[str, str]:
        """The versions of the contenders that are installed here."""
        return mqtt_peers.versions_of(self.contenders)

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if case["work"] == "sharing" and contender not in SHARES:
            raise Missing("has no shared subscriptions")
        stored = directory / "stored"
        stored.mkdir()
        with mqtt_peers.served(contender, stored, case.durability) as server:
            parameters: dict[str, Any] = dict(case.parameters)
            return load(mqtt_load.Job(port=server.port, server_pid=server.pid, **parameters))


def load(job: mqtt_load.Job) -> Figures:
    """Let a process do the work, and return its figures."""
    return figures_of([sys.executable, "-m", mqtt_load.__name__], job)


SHAPE = Mqtt()
