"""The checks of a cluster find each kind of violation in hand-made records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faults.checking import check_durable, check_publishing
from tests.faults.cluster.oracles import (
    CutOff,
    DamagedCopy,
    DifferingNode,
    FullServers,
    check_confirmed,
    check_damage_reported,
    check_differing,
    check_filled,
    check_not_stopped,
    check_owners,
    check_played,
    check_relayed,
    check_work,
)
from tests.faults.cluster.pauses import Pauses
from tests.faults.cluster.report import ClusterLoop, table
from tests.faults.journal_lines import EVENTS, done, got, published, stored
from tests.faults.journals import Diary, Received, read_published, read_received


def claimed(epoch: int) -> Mapping[str, Any]:
    return {"event": "shard.claimed", "shard": 0, "epoch": epoch}


def row(times: int) -> Pauses:
    return Pauses(
        "owner-killed", 2, times, median_s=1.0, worst_s=2.0, client_median_s=1.5, client_worst_s=2.5
    )


def test_records_without_violations_pass() -> None:
    violations: list[str] = []
    lines = [*done(0, 0, 1, 2), got(5, 3, 4), *done(10, 3, 4, 5, consumer="b")]
    assert check_confirmed("shared", lines, violations) == 6
    logs = {"n1": [[claimed(1)], [claimed(3), claimed(4)]], "n2": [[claimed(2)]]}
    assert check_owners(logs, violations) == 3
    check_damage_reported([DamagedCopy("n1", "s", "1.blk", is_reported=True)], violations)
    check_damage_reported(
        [DamagedCopy("n1", "s", "1.blk", is_reported=False, is_gone=True)], violations
    )
    check_played([row(2)], violations)
    check_relayed([CutOff("n1", 9.0, ())], violations)
    check_work({"single": [1]}, violations)
    check_not_stopped([published("single")], violations)

    assert violations == []


def test_a_publisher_that_is_told_that_the_realm_stops_is_found(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "single.published")
    diary.record_attempt(0, 1)
    diary.record_stopped(0, 1)
    diary.record_attempt(1, 1)
    diary.record_acknowledged(1, 1, 7)
    violations: list[str] = []
    check_not_stopped([read_published(diary.path)], violations)

    assert violations == ["single was told 1 times that the realm stops"]


DIFFERING = DifferingNode(
    "n2",
    "with access.mode = mandatory",
    "access.mode",
    is_reported=True,
    is_diagnosed=True,
    has_claimed=False,
)
REFUSED = "the engine has room for 40 bytes"


def test_a_node_that_differs_and_owns_or_is_not_reported_is_found() -> None:
    violations: list[str] = []
    check_differing([DIFFERING], violations)
    assert violations == []

    check_differing(
        [
            replace(DIFFERING, has_claimed=True),
            replace(DIFFERING, is_reported=False),
            replace(DIFFERING, is_diagnosed=False),
            replace(DIFFERING, harmed="the first process ended"),
        ],
        violations,
    )
    what = "n2, with access.mode = mandatory"
    assert violations == [
        f"{what}, claimed the realm",
        f"{what}, does not say that it is because of access.mode",
        f"{what}: penstock cluster doctor does not name access.mode",
        f"{what}: the first process ended",
    ]


def test_a_full_engine_that_refuses_wrongly_or_is_not_reported_is_found() -> None:
    violations: list[str] = []
    one, two = (
        FullServers(("n0",), is_majority=False, is_diagnosed=True, refused=""),
        FullServers(("n0", "n1"), is_majority=True, is_diagnosed=True, refused=REFUSED),
    )
    check_filled([one, two], violations)
    assert violations == []

    check_filled(
        [replace(one, refused=REFUSED), replace(two, refused=""), replace(one, is_diagnosed=False)],
        violations,
    )
    assert violations == [
        f"n0 full, and others have room: refused with {REFUSED!r}",
        "n0, n1 full: nothing was refused for want of room: ''",
        "n0 full: penstock cluster doctor does not say so",
    ]


def test_a_publisher_that_is_not_relayed_around_a_cut_is_found() -> None:
    violations: list[str] = []
    cuts = [CutOff("n1", 9.0, ()), CutOff("n2", 60.0, ("single", "named"))]
    check_relayed(cuts, violations)

    assert violations == [
        "60 s after clients were cut off from n2, nobody had relayed named, single"
    ]


def test_a_confirmed_event_delivered_to_another_consumer_is_found() -> None:
    violations: list[str] = []
    check_confirmed("shared", [*done(0, 0, 1, 2), got(9, 2, 3, consumer="b")], violations)

    assert violations == ["shared: b got what was confirmed: 2"]


def test_a_confirmed_event_delivered_again_to_the_same_consumer_is_found() -> None:
    violations: list[str] = []
    check_confirmed("shared", [*done(0, 0, 1, 2), *done(9, 2)], violations)

    assert violations == ["shared: a got what was confirmed: 2"]


def test_events_buffered_from_an_ended_connection_do_not_count_as_repeated() -> None:
    violations: list[str] = []
    late = [got(9, 2, consumer="b"), got(10, 2, consumer="b", what="stale")]
    check_confirmed("shared", [*done(0, 0, 1, 2), *late], violations)
    assert violations == []

    check_confirmed("shared", [*done(0, 0, 1, 2), *late, got(11, 2, consumer="b")], violations)
    assert violations == ["shared: b got what was confirmed: 2"]


def test_stale_events_are_read_back_as_written(tmp_path: Any) -> None:
    diary = Diary(tmp_path / "shared.1.received")
    diary.record_received([3, 4], [b"", b""])
    diary.record_stale([3, 4])
    lines: list[Received] = read_received([diary.path])

    assert [(line.what, line.ids) for line in lines] == [("got", [3, 4]), ("stale", [3, 4])]


@pytest.mark.parametrize(
    ("logs", "what"),
    [
        ({"n1": [[claimed(1)]], "n2": [[claimed(1)]]}, "n1 in its life 1, n2 in its life 1"),
        ({"n1": [[claimed(1)], [claimed(1)]]}, "n1 in its life 1, n1 in its life 2"),
        ({"n1": [[claimed(4), claimed(3)]]}, "n1 claimed epoch 3 of shard 0 behind a newer"),
    ],
)
def test_two_owners_of_one_epoch_are_found(
    logs: Mapping[str, list[list[Mapping[str, Any]]]], what: str
) -> None:
    violations: list[str] = []
    check_owners(logs, violations)

    assert len(violations) == 1
    assert what in violations[0]


def test_damage_that_is_not_reported_is_found() -> None:
    violations: list[str] = []
    check_damage_reported(
        [DamagedCopy("n1", "penstock-shard-0", "1.blk", is_reported=False)], violations
    )

    assert violations == ["nobody told that 1.blk of penstock-shard-0 on n1 is damaged"]


def test_a_run_with_fewer_faults_or_without_work_is_found() -> None:
    violations: list[str] = []
    check_played([row(1)], violations)
    check_work({"single": [1], "named": []}, violations)

    assert violations == [
        "owner-killed was played 1 times, not 2",
        "nothing was acknowledged to named",
    ]


def test_violations_of_a_cluster_are_in_its_report() -> None:
    """An acknowledged event is missing, another is stored twice, and a confirmed one was delivered
    to another consumer."""
    loop = ClusterLoop(
        4_711,
        "jetstream",
        10.0,
        load=1.5,
        lease_s=6.0,
        takeovers=3,
        pauses=[row(2)],
        publishers=[],
        consumers=[],
        damages=[],
        notes=[],
        violations=[],
    )
    violations = loop.violations
    kept = {**stored(0, 1, 2, 3, 4), 2: [2, 9]}
    loop.publishers.append(check_publishing(published(), kept, violations))
    lines = [*done(0, *range(6)), got(9, 3, consumer="b")]
    loop.consumers.append(check_durable("shared", lines, EVENTS, violations=violations))
    check_confirmed("shared", lines, violations)
    report = table(loop)

    assert not loop.is_well
    assert "acknowledged and gone: 5" in report
    assert "stored twice: 2" in report
    assert "b got what was confirmed: 3" in report
    assert "1 acknowledged events lost: 3 VIOLATIONS" in report
