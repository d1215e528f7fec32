"""Pauses without acknowledgements are those that the publishers had."""

from __future__ import annotations

from pathlib import Path

from tests.faults.cluster.crowd import back_after_s
from tests.faults.cluster.pauses import Pauses, Played, longest_ns, pauses

S = 1_000_000_000


def test_the_longest_time_between_two_acknowledgements_of_a_fault_counts() -> None:
    assert longest_ns([1, 2, 12, 14, 40], began_ns=2, ended_ns=14) == 10
    assert longest_ns([1, 2, 12, 14, 40], began_ns=2, ended_ns=15) == 26


def test_a_pause_begins_with_the_fault_at_the_earliest() -> None:
    assert longest_ns([1, 105], began_ns=100, ended_ns=110) == 5


def test_without_any_acknowledgement_a_pause_lasts_until_the_end_of_the_fault() -> None:
    assert longest_ns([], began_ns=100, ended_ns=110) == 10


def test_each_kind_has_median_and_worst_of_all_publishers_and_of_the_slowest() -> None:
    acknowledged = {
        "single": [n * S for n in (0, 1, 4, 10, 11, 12, 20, 21, 22, 23)],
        "named": [n * S for n in (0, 5, 10, 15, 20, 22)],
    }
    played = [
        Played("owner-killed", 1 * S, 5 * S),
        Played("owner-killed", 10 * S, 13 * S),
        Played("owner-frozen", 20 * S, 22 * S),
    ]
    rows = pauses(acknowledged, played, {"owner-killed": 2, "owner-frozen": 3, "other": 1})

    assert rows == [
        Pauses(
            "owner-killed", 2, 2, median_s=3.0, worst_s=3.0, client_median_s=7.0, client_worst_s=8.0
        ),
        Pauses(
            "owner-frozen", 3, 1, median_s=1.0, worst_s=1.0, client_median_s=2.0, client_worst_s=2.0
        ),
        Pauses("other", 1, 0, median_s=0.0, worst_s=0.0, client_median_s=0.0, client_worst_s=0.0),
    ]


def test_the_last_session_that_is_back_after_a_fault_counts(tmp_path: Path) -> None:
    diary = tmp_path / "sessions.back"
    diary.write_text("".join(f"{n * S}\n" for n in (0, 13, 11, 27)))
    played = [
        Played("owner-killed", 10 * S, 15 * S),
        Played("owner-killed", 20 * S, 30 * S),
        Played("owner-drained", 40 * S, 45 * S),
    ]

    assert back_after_s(diary, played) == [3.0, 7.0, 0.0]
