"""Every reader returns an answer or a documented error, in bounded time and memory.

This is a short, fixed part of ``make fuzz``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_testing.process import search_path
from tests.fuzz.bounding import InputTimeout, in_time
from tests.fuzz.mutating import mutations
from tests.fuzz.targets import TARGETS, Target, missing

ROOT = Path(__file__).resolve().parents[2]
MEMORY_MIB = 768
SLOW = {
    "realms": 8,
    "tables": 25,
    "connections": 40,
    "extremes": 60,
    "amqp": 60,
    "http": 60,
    "mqtt_connections": 60,
}
"""Targets with directories or realms, and their number of inputs here."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_valid_inputs_pass_and_almost_valid_ones_do_no_harm(name: str) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    target = TARGETS[name]
    seeds = target.seeds()
    for seed in seeds:
        target.run(seed)

    @given(mutations(seeds))
    @settings(
        max_examples=SLOW.get(name, 100),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def harmless(data: bytes) -> None:
        with in_time():
            target.run(data)

    harmless()


GROUPS = (
    ("frames", "bodies", "schemas", "selectors", "answers", "segments", "mqtt_packets"),
    ("mqtt_payloads", "mqtt_events", "mqtt_connections"),
    ("journal", "blocks", "tables", "snapshots", "records", "manifests"),
    ("amqp", "amqp_messages", "amqp_headers"),
    ("connections", "extremes", "http", "realms"),
    ("settings", "pipelines", "topologies", "descriptors", "messages"),
    ("streams", "cells", "documents", "numbers"),
)
"""Targets that share a process with a limit on its memory."""


def test_every_reader_has_its_memory_limited() -> None:
    assert sorted(name for names in GROUPS for name in names) == sorted(TARGETS)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("names", GROUPS)
def test_no_input_makes_a_reader_take_memory_without_bound(names: tuple[str, ...]) -> None:
    if reason := "".join(map(missing, names)):
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.fuzz", "--only", *names]
    process = subprocess.run(
        [*command, "--examples", "100", "--memory-mib", str(MEMORY_MIB)],
        env={**os.environ, "PYTHONPATH": search_path()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count(" 0 broken") == len(names)


def _takes_all_memory(data: bytes) -> None:
    assert data or bytearray(1 << 40)


def test_the_limits_stop_an_endless_and_a_greedy_reader() -> None:
    """Checks the limits themselves."""

    def loop_forever(_: bytes) -> None:
        while True:
            pass

    greedy, endless = Target(_takes_all_memory, list), Target(loop_forever, list)
    with pytest.raises(MemoryError):
        greedy.run(b"")
    with pytest.raises(InputTimeout), in_time(0.05):
        endless.run(b"")


@given(st.data())
@settings(max_examples=20, derandomize=True, database=None)
def test_almost_valid_inputs_are_close_to_their_seed(data: st.DataObject) -> None:
    seed = bytes(range(200))
    drawn = data.draw(mutations([seed]))

    assert isinstance(drawn, bytes)
    assert len(drawn) <= 2 * len(seed) + 200
