"""A short, fixed part of ``make faults ARGS=--cluster``: real processes, an owner killed, one
frozen, an engine's server killed, no losses. Also the controls, where no node may start."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.faults.cluster import unfenced
from tests.faults.cluster.engines import kinds
from tests.faults.cluster.nodes import UNREADABLE
from tests.faults.cluster.report import table
from tests.faults.cluster.run import ClusterSettings, play
from tests.faults.cluster.wrong import refusal
from tests.faults.report import as_json

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.alone]

LEASE_S = 2.0
KINDS = ("owner-killed", "owner-frozen", "server-killed")
DIFFERING_KINDS = ("blobs-unmounted", "settings-differ", "name-taken")
EARLY_KINDS = ("started-early",)
CAST = (
    ("single", "careless", "transaction", "joint", "named", "popped", "mqtt"),
    ("exclusive.1", "shared.1", "serial.1", "subscription.1", "reader.1", "pop.1", "mqtt_qos2.1"),
)


@pytest.mark.spec("X1", "X3", "D4", "D13", "M7", "M13")
def test_a_cluster_under_real_faults_loses_and_repeats_nothing(tmp_path: Path) -> None:
    loop = play(ClusterSettings(4_711, 0.1, tmp_path, kinds=KINDS, cast=CAST, lease_s=LEASE_S))

    report = table(loop)
    assert loop.is_well, report
    assert {row.what for row in loop.pauses if row.times} == set(KINDS), report
    assert loop.takeovers >= 1, report
    assert min(row.acknowledged for row in loop.publishers) > 0, report
    assert min(row.received for row in loop.consumers) > 0, report
    assert sum(row.lost for row in loop.publishers) == 0
    assert "0 acknowledged events lost: everything held" in report
    assert b'"violations": []' in as_json([loop])


@pytest.mark.spec("X3", "N3")
def test_a_node_that_differs_never_owns_and_says_why(tmp_path: Path) -> None:
    """An even seed, so that the files are in a folder."""
    loop = play(
        ClusterSettings(
            4_712, 0.0, tmp_path, kinds=DIFFERING_KINDS, cast=unfenced.CAST, lease_s=LEASE_S
        )
    )

    report = table(loop)
    assert loop.is_well, report
    assert {row.what for row in loop.pauses if row.times} == set(DIFFERING_KINDS), report


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("lazy-sync", "sync_interval: always within jetstream"),
        ("memory", "storage is memory, not file"),
    ],
)
def test_no_node_starts_on_an_engine_that_would_lose(what: str, line: str, tmp_path: Path) -> None:
    assert line in refusal(what, tmp_path, LEASE_S)


@pytest.mark.spec("N3")
def test_nodes_without_the_fence_do_harm_and_those_with_it_do_none(
    tmp_path: Path,
) -> None:
    """The owner is frozen just before it sends a block, and wakes once another node has served. It
    uses JetStream, where the next reader of the stream notices the harm at once."""
    if reason := kinds()["jetstream"].missing():
        pytest.skip(reason)
    settings = ClusterSettings(7, 0.1, tmp_path / "fenced", lease_s=LEASE_S, engine="jetstream")
    without = replace(settings, folder=tmp_path / "unfenced", program=unfenced.PROGRAM)

    assert unfenced.harm(settings) == ""
    assert UNREADABLE in unfenced.harm(without)


@pytest.mark.spec("N3")
def test_a_node_that_starts_without_a_majority_of_the_engine_waits_and_then_serves(
    tmp_path: Path,
) -> None:
    if reason := kinds()["jetstream"].missing():
        pytest.skip(reason)
    settings = ClusterSettings(4_713, 0.0, tmp_path, cast=unfenced.CAST, lease_s=LEASE_S)
    loop = play(replace(settings, kinds=EARLY_KINDS, engine="jetstream"))

    report = table(loop)
    assert loop.is_well, report
    assert {row.what for row in loop.pauses if row.times} == set(EARLY_KINDS), report
