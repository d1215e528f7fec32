"""Lines that any number of clients could cause are written once a minute."""

from __future__ import annotations

from penstock_server.runtime.access.rare_lines import EVERY_S, KINDS_MAX, RareLines
from penstock_testing.loop import pass_time, simulated


@simulated
async def test_a_line_is_written_once_a_minute_with_how_many_were_left_out() -> None:
    lines = RareLines()

    assert [lines.is_due("n1", "refused") for _ in range(662)] == [True] + [False] * 661
    await pass_time(EVERY_S)
    assert lines.is_due("n1", "refused")
    assert lines.left_out("n1", "refused") == 661
    assert lines.left_out("n1", "refused") == 0


@simulated
async def test_lines_of_another_kind_are_written() -> None:
    lines = RareLines()

    assert lines.is_due("n1", "refused")
    assert lines.is_due("n2", "refused")
    assert lines.is_due("n1", "no answer")


@simulated
async def test_kinds_that_strangers_make_up_are_not_remembered_for_ever() -> None:
    lines = RareLines()

    for number in range(10 * KINDS_MAX):
        lines.is_due(number)

    remembered = sum(not lines.is_due(number) for number in range(10 * KINDS_MAX))
    assert remembered <= KINDS_MAX
