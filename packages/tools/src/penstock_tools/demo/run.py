"""Runs a demonstration: begins the processes, has traffic go over them, does what keys and a script
ask for, and shows it, until it is ended. Nothing that was begun stays."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from penstock_core.vocabulary.errors import PenstockError, Unavailable
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.writer.clock import SystemClock
from penstock_tools.demo.actions import MEMBERS, Action, TimedAction
from penstock_tools.demo.processes import DemoProcesses, demo_processes
from penstock_tools.demo.screen import Deed, Picture, ProcessLine
from penstock_tools.demo.traffic import Traffic

UP_S: Final = 120.0
"""How long it may take until the first event is acknowledged."""
DRAIN_S: Final = 20.0
"""How long the consumer is waited for at the end, unless the end is asked for again."""
_LOOK_S: Final = 0.05
_LEADER_S: Final = 1.0
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Display(Protocol):
    """Where a demonstration is shown, and what somebody there asks for."""

    every_s: float
    """Seconds between two pictures."""

    def show(self, picture: Picture) -> None: ...

    def tell(self, text: str) -> None:
        """Show something that happened before the first picture, or a deed."""
        ...

    def listen(self, act: Callable[[Action], None], end: Callable[[], None]) -> None:
        """Call these when somebody asks for something, from the running loop."""
        ...


def run_demo(
    display: Display, script: Sequence[TimedAction] = (), seconds: float | None = None
) -> Picture:
    """Run it until it is ended: by the display, a signal, or after so many ``seconds``. Gives how
    it was at the end, when the consumer has come as far as it could.

    Raises ``InvalidArgument`` where the engine is not installed, and ``Unavailable`` when the
    cluster does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        return asyncio.run(_run(Path(folder), display, script, seconds=seconds))


async def _run(
    folder: Path, display: Display, script: Sequence[TimedAction], seconds: float | None
) -> Picture:
    ending = _Ending()
    loop = asyncio.get_running_loop()
    for number in _ENDS:
        loop.add_signal_handler(number, ending.ask)
    try:
        with demo_processes(folder) as processes:
            clock = SystemClock()
            demo = _Demo(
                processes, Traffic(processes.url, clock), display, clock=clock, ending=ending
            )
            async with asyncio.TaskGroup() as tasks:
                others = [
                    tasks.create_task(demo.traffic.run(), name="traffic"),
                    tasks.create_task(demo.follow_leader(), name="leader"),
                    tasks.create_task(demo.play(script, seconds), name="script"),
                    tasks.create_task(demo.show(), name="display"),
                ]
                await ending.asked.wait()
                await demo.drain()
                for task in others:
                    task.cancel()
            return demo.picture()
    except* PenstockError as failures:
        raise failures.exceptions[0] from None
    finally:
        for number in _ENDS:
            loop.remove_signal_handler(number)


class _Ending:
    """Asked for once, the run ends when the consumer has come to the end; again, at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.is_hurried = False

    def ask(self) -> None:
        self.is_hurried = self.asked.is_set()
        self.asked.set()


class _Demo:
    """One run."""

    def __init__(
        self,
        processes: DemoProcesses,
        traffic: Traffic,
        display: Display,
        clock: Clock,
        ending: _Ending,
    ) -> None:
        self.traffic = traffic
        self._processes = processes
        self._display = display
        self._clock = clock
        self._ending = ending
        self._leader = 0
        self._began_us = 0
        """When the first event was acknowledged."""
        self._deeds: list[Deed] = []

    # --- what there is to see -------------------------------------------------------------

    @property
    def _at_s(self) -> float:
        return (self._clock.steady_us() - self._began_us) / 1e6 if self._began_us else 0.0

    def picture(self) -> Picture:
        """How everything is at this moment."""
        now_us = self._clock.steady_us()
        processes, ledger = self._processes, self.traffic.ledger
        acknowledgements, owner = self.traffic.acknowledgements, processes.owner
        epoch = processes.epoch
        return Picture(
            at_s=self._at_s,
            url=processes.url,
            console="" if owner is None else owner.http_url,
            settings=f"{processes.settings}",
            owner="" if owner is None else owner.name,
            epoch=epoch,
            nodes=[
                ProcessLine(node.name, processes.node_condition(number), node.address)
                for number, node in enumerate(processes.nodes, 1)
            ],
            servers=[self._server(number) for number in range(1, MEMBERS + 1)],
            a_second=acknowledgements.a_second(now_us),
            waiting_s=acknowledgements.waiting_us(now_us) / 1e6,
            published=ledger.published,
            delivered=ledger.delivered,
            outstanding=ledger.outstanding,
            lost=ledger.lost,
            twice=ledger.twice,
            deeds=self._timed_deeds(now_us),
            trouble=self.traffic.trouble,
        )

    def _server(self, number: int) -> ProcessLine:
        condition: str = self._processes.engine_condition(number)
        leads = condition == "up" and number == self._leader
        where = self._processes.engine.urls[number - 1].removeprefix("nats://")
        return ProcessLine(f"engine {number}", "leads" if leads else condition, where)

    def _timed_deeds(self, now_us: int) -> list[Deed]:
        """All deeds; the longest time without acknowledgements since the last one still grows."""
        if not self._deeds:
            return []
        last = self._deeds[-1]
        longest_s = self.traffic.acknowledgements.longest_us(now_us) / 1e6
        return [*self._deeds[:-1], Deed(last.at_s, last.what, longest_s)]

    async def show(self) -> None:
        """Show pictures from the first acknowledgement on. Raises ``Unavailable``."""
        self._display.listen(self.act, self._ending.ask)
        await self._come_up()
        while True:
            self._display.show(self.picture())
            await asyncio.sleep(self._display.every_s)

    async def _come_up(self) -> None:
        self._display.tell("starting three engine servers and three nodes")
        started_us = self._clock.steady_us()
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_S):
                # Deeds are timed from here, and "the owner" has to be somebody by then: what a node
                # says of itself may come after what its first client is told
                while not (self.traffic.ledger.published and self._processes.owner):
                    self._check_nodes()
                    await asyncio.sleep(_LOOK_S)
                self._began_us = self._clock.steady_us()
                up_s = (self._began_us - started_us) / 1e6
                self._display.tell(
                    f"the first event was acknowledged after {up_s:.1f} s; look at the cluster "
                    f"with: penstock cluster status --settings {self._processes.settings}"
                )
                return
        raise Unavailable(
            f"after {UP_S:.0f} s nothing is acknowledged: {self.traffic.trouble or 'no answer'}"
        )

    def _check_nodes(self) -> None:
        for node in self._processes.nodes:
            if failure := node.failure:
                raise Unavailable(f"node {node.name} did not start: {failure}")

    # --- what is done ---------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Do what somebody asks for, and time the acknowledgements from here."""
        now_us = self._clock.steady_us()
        self._deeds = self._timed_deeds(now_us)
        what = self._processes.act(action.verb, action.target, self._leader)
        self._deeds.append(Deed(self._at_s, what, 0.0))
        self.traffic.acknowledgements.begin_anew(now_us)
        self._display.tell(f"{self._at_s:6.1f} s  {what}")

    async def play(self, script: Sequence[TimedAction], seconds: float | None) -> None:
        """Do what the script says, each at its time since the first acknowledgement, and end the
        run after so many seconds."""
        for timed in script:
            await self._until(timed.at_s)
            self.act(timed.action)
        if seconds is not None:
            await self._until(seconds)
            self._ending.asked.set()

    async def _until(self, at_s: float) -> None:
        while True:
            if self._began_us and self._at_s >= at_s:
                return
            await asyncio.sleep(_LOOK_S)

    async def follow_leader(self) -> None:
        """Know which server of the engine leads."""
        while True:
            self._leader = await asyncio.to_thread(self._processes.leader)
            await asyncio.sleep(_LEADER_S)

    async def drain(self) -> None:
        """Publish nothing more, and let the consumer have what is there."""
        self.traffic.stop_publishing()
        ledger = self.traffic.ledger
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S if ledger.published else 0):
                while True:
                    if self._ending.is_hurried or not self._has_more():
                        return
                    await asyncio.sleep(_LOOK_S)

    def _has_more(self) -> bool:
        return self.traffic.is_publishing or self.traffic.ledger.outstanding > 0
