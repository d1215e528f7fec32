"""A script says what is done when; what it says wrong is named with what would be right."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.demo.actions import Action, ProcessTarget, TimedAction, script_of


def test_actions_come_in_the_order_of_their_times() -> None:
    assert script_of("12:freeze engine 1, 5:kill owner,20.5:thaw last,0:start node 3,") == [
        TimedAction(0.0, Action("start", ProcessTarget("node", 3))),
        TimedAction(5.0, Action("kill", ProcessTarget("node"))),
        TimedAction(12.0, Action("freeze", ProcessTarget("engine", 1))),
        TimedAction(20.5, Action("thaw", None)),
    ]
    assert script_of("1:kill engine leader") == [
        TimedAction(1.0, Action("kill", ProcessTarget("engine"))),
    ]
    assert script_of("1:cut owner,2:heal last") == [
        TimedAction(1.0, Action("cut", ProcessTarget("node"))),
        TimedAction(2.0, Action("heal", None)),
    ]
    assert script_of("") == []


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (
            "kill owner",
            "'kill owner' has no time and action: an example of a script is '5:kill owner",
        ),
        ("5:", "'5:' has no time and action"),
        (
            "soon:kill owner",
            "'soon' in 'soon:kill owner' is not a time; allowed are seconds from 0 on",
        ),
        ("-1:kill owner", "'-1' in '-1:kill owner' is not a time"),
        ("nan:kill owner", "'nan' in 'nan:kill owner' is not a time"),
        ("5:stop owner", "'stop' in '5:stop owner' is not an action; allowed are kill"),
        ("5:kill", "'' in '5:kill' is not a process; allowed are owner, engine leader"),
        ("5:kill node 4", "'node 4' in '5:kill node 4' is not a process"),
        ("5:kill engine", "'engine' in '5:kill engine' is not a process"),
    ],
)
def test_a_wrong_script_is_refused_with_what_is_right(script: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        script_of(script)

    assert str(refused.value).startswith(named)
