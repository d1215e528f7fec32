"""The start of a demonstration, after which its script begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_tools.demo.actions import Action
from penstock_tools.demo.processes import DemoProcesses
from penstock_tools.demo.run import DemoEnding, DemoRun
from penstock_tools.demo.screen import Picture
from penstock_tools.demo.traffic import Traffic


class Told:
    """A display that keeps what it is told."""

    every_s = 1.0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, picture: Picture) -> None: ...

    def show_message(self, text: str) -> None:
        self.lines.append(text)

    def listen(self, act: Callable[[Action], None], end: Callable[[], None]) -> None: ...


@simulated
async def test_it_is_up_when_an_event_is_acknowledged_and_its_owner_is_known() -> None:
    """A node's word that it serves may be read after the first acknowledgement: a script that kills
    the owner at once would find nobody to kill."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    processes: Any = SimpleNamespace(owner=None, nodes=[], url="", settings="realm.toml")
    traffic: Any = SimpleNamespace(ledger=SimpleNamespace(published=0), trouble="")
    display = Told()
    demo = DemoRun(
        cast("DemoProcesses", processes),
        cast("Traffic", traffic),
        display,
        clock=loop,
        ending=DemoEnding(),
    )
    coming = loop.create_task(demo.wait_until_up())

    await pass_time(1)
    traffic.ledger.published = 1
    await pass_time(1)
    assert not coming.done(), "nobody is known to own the realm"
    processes.owner = SimpleNamespace(name="n1")
    await pass_time(1)

    assert coming.done()
    assert "the first event was acknowledged after 2" in display.lines[-1]
