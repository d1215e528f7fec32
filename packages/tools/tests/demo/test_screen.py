"""The screen and the lines of a demonstration, drawn from what is to be seen at a moment."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from penstock_tools.demo.actions import Action, ProcessTarget
from penstock_tools.demo.screen import (
    Chooser,
    ExecutedAction,
    Picture,
    ProcessLine,
    action_line,
    line,
    render,
)

PICTURE = Picture(
    at_s=12.04,
    url="penstock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    console="http://127.0.0.1:4",
    settings="/var/demo/penstock.toml",
    owner="n2",
    epoch=3,
    nodes=[
        ProcessLine("n1", "killed", "127.0.0.1:1"),
        ProcessLine("n2", "owner", "127.0.0.1:2"),
        ProcessLine("n3", "stands by", "127.0.0.1:3"),
    ],
    servers=[
        ProcessLine("engine 1", "leads", "127.0.0.1:5"),
        ProcessLine("engine 2", "frozen", "127.0.0.1:6"),
        ProcessLine("engine 3", "up", "127.0.0.1:7"),
    ],
    acknowledgements_per_s=1_310,
    waiting_s=0.04,
    published=15_000,
    delivered=14_998,
    outstanding=2,
    lost=0,
    twice=0,
    executed_actions=[ExecutedAction(5.0, "kill node 1 (owner)", 1.84)],
)


def screen(picture: Picture, chooser: Chooser | None = None) -> str:
    console = Console(file=io.StringIO(), width=110, color_system=None)
    console.print(render(picture, (chooser or Chooser()).chosen))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_screen_has_all_there_is_to_see() -> None:
    shown = screen(PICTURE)

    for text in (
        "owner n2",
        "epoch 3",
        "1,310 acknowledgements/s",
        "0.0 s without one",
        "published 15,000",
        "delivered 14,998",
        "lost 0",
        "twice 0",
        "penstock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "http://127.0.0.1:4",
        "5.0 s  kill node 1 (owner): 1.8 s without acknowledgements at most",
        "k kills, f freezes, c cuts off the owner; t thaws, h heals, s restarts it; 1-3 choose",
        "penstock cluster status --settings /var/demo/penstock.toml",
    ):
        assert text in shown
    rows = [row.split() for row in shown.splitlines()]
    assert ["1", "n1", "killed", "127.0.0.1:1"] in rows
    assert ["5", "engine", "2", "frozen", "127.0.0.1:6"] in rows


def test_without_an_owner_it_says_so_and_what_clients_are_told() -> None:
    shown = screen(replace(PICTURE, owner="", console="", trouble="no answer [no-quorum]"))

    assert "owner none" in shown
    assert "none while no node is the owner" in shown
    assert "no answer [no-quorum]" in shown


def test_the_newest_deeds_are_shown() -> None:
    executed_actions = [
        ExecutedAction(float(second), f"deed {second}", 0.0) for second in range(20)
    ]

    shown = screen(replace(PICTURE, executed_actions=executed_actions))

    assert "deed 13" not in shown
    assert all(f"deed {second}:" in shown for second in range(14, 20))


def test_a_line_has_the_state_of_each_process_and_the_counts() -> None:
    assert line(PICTURE) == (
        "  12.0 s  owner n2, epoch 3; n1 killed, n2 owner, n3 stands by; engine 1 leads, engine 2 "
        "frozen, engine 3 up; 1310 acknowledgements/s, 0.0 s without one; published "
        "15,000, delivered 14,998, lost 0, twice 0"
    )
    assert "owner none, epoch 3" in line(replace(PICTURE, owner=""))
    assert "lost 3, twice 1" in line(replace(PICTURE, lost=3, twice=1))


def test_what_controls_a_terminal_is_escaped() -> None:
    assert "\x1b" not in action_line(ExecutedAction(1.0, "kill \x1b[2J", 0.0))
    assert "\x1b" not in screen(replace(PICTURE, trouble="\x1b[2J"))


@pytest.mark.parametrize(
    ("keys", "action"),
    [
        ("k", Action("kill", ProcessTarget("node"))),
        ("2f", Action("freeze", ProcessTarget("node", 2))),
        ("6t", Action("thaw", ProcessTarget("engine", 3))),
        ("ls", Action("start", None)),
        ("5c", Action("cut", ProcessTarget("engine", 2))),
        ("oh", Action("heal", None)),
        ("3ok", Action("kill", ProcessTarget("node"))),
        ("0789xk", Action("kill", ProcessTarget("node"))),
    ],
)
def test_keys_choose_a_process_and_what_is_done_to_it(keys: str, action: Action) -> None:
    chooser = Chooser()

    pressed = [chooser.press(key) for key in keys]

    assert pressed[:-1] == [None] * (len(keys) - 1)
    assert pressed[-1] == action
    assert not chooser.is_ended


def test_q_ends_and_the_screen_names_what_is_chosen() -> None:
    chooser = Chooser()
    chooser.press("4")
    assert "c cuts off engine 1;" in screen(PICTURE, chooser)

    assert chooser.press("q") is None
    assert chooser.is_ended
