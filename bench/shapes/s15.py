"""S15: messages received over AMQP 1.0 from clients of other projects."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import amqp_sends, jars
from bench.amqp_peers import Speaker, speaker
from bench.measuring import cpu_s_of_all, percentiles_us
from bench.processes import figures_of, run_timeout_s, without_client
from bench.shape import Case, Figures, Missing

SIZE = 128
PROGRAM = Path(amqp_sends.__file__).parent / "java" / "Sends.java"


class Taken(msgspec.Struct, frozen=True):
    """The output of the Java program."""

    nanoseconds: list[int]


class AmqpIn:
    """One connection sends durable messages to a queue; it warms up for as long as it then
    measures. The queue has no reader."""

    name = "S15"
    title = f"sends over AMQP 1.0, one connection, durable messages of {SIZE} B to a queue"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock", "artemis", "rabbitmq")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds = 0.2 if quick else 3.0
        return [
            *(
                Case(f"C client, {label}", "D1", {"is_settled": is_settled, "seconds": seconds})
                for label, is_settled in (("settled", True), ("acknowledged", False))
            ),
            *(
                Case("Qpid JMS, one at a time", durability, {"seconds": seconds})
                for durability in (("D1",) if quick else ("D1", "D2"))
            ),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        is_java = "is_settled" not in case.parameters
        if reason := _without_java() if is_java else without_client("python-qpid-proton"):
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        with speaker(contender, stored, case.durability) as server:
            if is_java:
                return _sent_by_java(server, case["seconds"], directory / "java.log")
            job = amqp_sends.Job(server, SIZE, case["seconds"], is_settled=case["is_settled"])
            return figures_of([sys.executable, "-m", amqp_sends.__name__], job)


def _without_java() -> str:
    if shutil.which("javac") is None:
        return "its client is compiled by javac: apt-get install openjdk-17-jdk-headless"
    return jars.missing("qpid-jms")


def _sent_by_java(to: Speaker, seconds: float, log: Path) -> Figures:
    """Run the Java program; Java compiles it at its start."""
    command = [shutil.which("java") or "", "-Xms256m", "-Xmx512m"]
    command += ["-cp", jars.class_path("qpid-jms"), str(PROGRAM)]
    command += [to.url, to.user, to.queue, str(SIZE), str(seconds)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as sending,
    ):
        assert sending.stdin is not None, "stdin is a pipe"
        assert sending.stdout is not None, "stdout is a pipe"
        deadline = threading.Timer(run_timeout_s(), sending.kill)
        deadline.start()
        try:
            is_warm = sending.stdout.readline() == "warm\n"
            used_s = cpu_s_of_all(to.server_pid)
            if is_warm:
                print(file=sending.stdin, flush=True)
            line = sending.stdout.readline()
            used_s = cpu_s_of_all(to.server_pid) - used_s
        finally:
            deadline.cancel()
            sending.kill()
    if not line:
        raise RuntimeError(f"{PROGRAM.name} failed:\n{log.read_text()[-4_000:]}")
    taken_s = [
        nanoseconds_taken / 1e9
        for nanoseconds_taken in msgspec.json.decode(line, type=Taken).nanoseconds
    ]
    percentiles = percentiles_us(taken_s)
    return {
        "events_per_s": len(taken_s) / sum(taken_s),
        "of_server_cpu_s_per_million": used_s / len(taken_s) * 1e6,
        "p50_us": percentiles["p50_us"],
        "p99_us": percentiles["p99_us"],
    }


SHAPE = AmqpIn()
