"""The checks of a cluster have teeth: each kind of harm, written down as it would be, is found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faults.checking import check_durable, check_publishing
from tests.faults.cluster.oracles import (
    CutOff,
    Differing,
    Filled,
    Spoilt,
    check_confirmed,
    check_differing,
    check_filled,
    check_not_stopped,
    check_owners,
    check_played,
    check_relayed,
    check_told,
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


def test_what_is_well_is_found_well() -> None:
    wrong: list[str] = []
    lines = [*done(0, 0, 1, 2), got(5, 3, 4), *done(10, 3, 4, 5, by="b")]
    assert check_confirmed("shared", lines, wrong) == 6
    logs = {"n1": [[claimed(1)], [claimed(3), claimed(4)]], "n2": [[claimed(2)]]}
    assert check_owners(logs, wrong) == 3
    check_told([Spoilt("n1", "s", "1.blk", told=True)], wrong)
    check_told([Spoilt("n1", "s", "1.blk", told=False, is_gone=True)], wrong)
    check_played([row(2)], wrong)
    check_relayed([CutOff("n1", 9.0, ())], wrong)
    check_work({"single": [1]}, wrong)
    check_not_stopped([published("single")], wrong)

    assert wrong == []


def test_a_publisher_that_is_told_that_the_realm_stops_is_found(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "single.published")
    diary.trying(0, 1)
    diary.stopped(0, 1)
    diary.trying(1, 1)
    diary.done(1, 1, 7)
    wrong: list[str] = []
    check_not_stopped([read_published(diary.path)], wrong)

    assert wrong == ["single was told 1 times that the realm stops"]


DIFFERING = Differing(
    "n2",
    "with access.mode = mandatory",
    "access.mode",
    is_told=True,
    is_examined=True,
    has_claimed=False,
)
REFUSED = "the engine has room for 40 bytes"


def test_a_node_that_differs_and_owns_or_is_not_told_of_is_found() -> None:
    wrong: list[str] = []
    check_differing([DIFFERING], wrong)
    assert wrong == []

    check_differing(
        [
            replace(DIFFERING, has_claimed=True),
            replace(DIFFERING, is_told=False),
            replace(DIFFERING, is_examined=False),
            replace(DIFFERING, harmed="the first process ended"),
        ],
        wrong,
    )
    what = "n2, with access.mode = mandatory"
    assert wrong == [
        f"{what}, claimed the realm",
        f"{what}, does not say that it is because of access.mode",
        f"{what}: penstock cluster doctor does not name access.mode",
        f"{what}: the first process ended",
    ]


def test_a_full_engine_that_refuses_too_little_or_too_much_or_is_not_told_of_is_found() -> None:
    wrong: list[str] = []
    one, two = (
        Filled(("n0",), is_majority=False, is_examined=True, refused=""),
        Filled(("n0", "n1"), is_majority=True, is_examined=True, refused=REFUSED),
    )
    check_filled([one, two], wrong)
    assert wrong == []

    check_filled(
        [replace(one, refused=REFUSED), replace(two, refused=""), replace(one, is_examined=False)],
        wrong,
    )
    assert wrong == [
        f"n0 full, and others have room: refused with {REFUSED!r}",
        "n0, n1 full: nothing was refused for want of room: ''",
        "n0 full: penstock cluster doctor does not say so",
    ]


def test_who_is_not_relayed_around_a_cut_is_found() -> None:
    wrong: list[str] = []
    cuts = [CutOff("n1", 9.0, ()), CutOff("n2", 60.0, ("single", "named"))]
    check_relayed(cuts, wrong)

    assert wrong == ["60 s after clients were cut off from n2, nobody had relayed named, single"]


def test_what_was_confirmed_and_comes_to_another_consumer_is_found() -> None:
    wrong: list[str] = []
    check_confirmed("shared", [*done(0, 0, 1, 2), got(9, 2, 3, by="b")], wrong)

    assert wrong == ["shared: b got what was confirmed: 2"]


def test_what_was_confirmed_and_comes_again_to_the_same_consumer_is_found() -> None:
    wrong: list[str] = []
    check_confirmed("shared", [*done(0, 0, 1, 2), *done(9, 2)], wrong)

    assert wrong == ["shared: a got what was confirmed: 2"]


def test_what_a_consumer_finds_in_its_memory_behind_the_end_of_its_connection_came_before() -> None:
    wrong: list[str] = []
    late = [got(9, 2, by="b"), got(10, 2, by="b", what="stale")]
    check_confirmed("shared", [*done(0, 0, 1, 2), *late], wrong)
    assert wrong == []

    check_confirmed("shared", [*done(0, 0, 1, 2), *late, got(11, 2, by="b")], wrong)
    assert wrong == ["shared: b got what was confirmed: 2"]


def test_stale_events_are_read_back_as_they_were_written(tmp_path: Any) -> None:
    diary = Diary(tmp_path / "shared.1.received")
    diary.got([3, 4], [b"", b""])
    diary.stale([3, 4])
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
    wrong: list[str] = []
    check_owners(logs, wrong)

    assert len(wrong) == 1
    assert what in wrong[0]


def test_damage_that_nobody_told_is_found() -> None:
    wrong: list[str] = []
    check_told([Spoilt("n1", "penstock-shard-0", "1.blk", told=False)], wrong)

    assert wrong == ["nobody told that 1.blk of penstock-shard-0 on n1 is damaged"]


def test_a_run_with_fewer_faults_or_without_work_shows_nothing_and_is_found() -> None:
    wrong: list[str] = []
    check_played([row(1)], wrong)
    check_work({"single": [1], "named": []}, wrong)

    assert wrong == [
        "owner-killed was played 1 times, not 2",
        "nothing was acknowledged to named",
    ]


def test_a_doctored_history_of_a_cluster_is_a_violation_in_its_report() -> None:
    """An acknowledged event is gone, another one is there twice, and one that was confirmed came
    to somebody else."""
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
    wrong = loop.violations
    kept = {**stored(0, 1, 2, 3, 4), 2: [2, 9]}
    loop.publishers.append(check_publishing(published(), kept, wrong))
    lines = [*done(0, *range(6)), got(9, 3, by="b")]
    loop.consumers.append(check_durable("shared", lines, EVENTS, wrong=wrong))
    check_confirmed("shared", lines, wrong)
    told = table(loop)

    assert not loop.is_well
    assert "acknowledged and gone: 5" in told
    assert "stored twice: 2" in told
    assert "b got what was confirmed: 3" in told
    assert "1 acknowledged events lost: 3 VIOLATIONS" in told
