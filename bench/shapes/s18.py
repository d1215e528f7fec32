"""S18: MQTT at scale: sessions of absent clients, retained messages, idle connections."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from bench import mqtt_peers
from bench.mqtt_load import Job
from bench.shape import Case, Figures
from bench.shapes.s17 import load


class MuchMqtt:
    """Work whose cost should depend on the matching items only, not on the number of stored
    ones."""

    name = "S18"
    title = "MQTT 3.1.1, 128 B: many sessions and retained messages"
    figure = "ms"
    higher_is_better = False
    contenders: Sequence[str] = ("penstock", "mosquitto")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 3.0
        sessions, topics, idle = (50, 2_000, 50) if quick else (5_000, 100_000, 10_000)

        def case(label: str, **parameters: object) -> Case:
            return Case(label, "D1", {"seconds": seconds, **parameters})

        retained = f"{topics:,} retained: "
        return [
            case(f"{sessions:,} offline sessions: CPU per publish", sessions=sessions),
            case(f"{retained}subscribe to #", topics=topics, wanted="#", expected=topics),
            case(f"{retained}subscribe to ten", topics=topics, wanted="site/001/42/+", expected=10),
            case(f"{retained}subscribe to one", topics=topics, wanted="site/001/42/7", expected=1),
            case(f"{retained}restart", topics=topics, wanted="site/001/42/7", expected=1),
            case(f"{idle:,} connections, 100 messages/s: CPU per second", idle=idle),
        ]

    def versions(self) -> Mapping[str, str]:
        """The versions of the contenders that are installed here."""
        return mqtt_peers.versions_of(self.contenders)

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        parameters, seconds = case.parameters, case["seconds"]
        stored = directory / "stored"
        stored.mkdir()
        with mqtt_peers.served(contender, stored, case.durability, keeps=True) as server:
            job = Job("", server.port, server.pid, seconds=seconds)
            if "sessions" in parameters:
                return load(replace(job, work="away", subscribers=parameters["sessions"]))
            if "idle" in parameters:
                return load(replace(job, work="idling", connections=parameters["idle"], window=100))
            load(replace(job, work="retaining", topics=parameters["topics"]))
            wanted, expected = parameters["wanted"], parameters["expected"]
            if not case.label.endswith("restart"):
                return load(replace(job, work="looking", wanted=wanted, expected=expected))
        started_s = time.perf_counter()
        with mqtt_peers.served(contender, stored, case.durability, keeps=True) as server:
            taken_s = time.perf_counter() - started_s
            job = Job(
                "looking", server.port, server.pid, seconds=0.0, wanted=wanted, expected=expected
            )
            figures = load(job)
        return {"ms": taken_s * 1_000, "first_event_ms": figures["ms"]}


SHAPE = MuchMqtt()
