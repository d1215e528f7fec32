"""Runs a demonstration: starts the processes and the traffic, executes the actions of keys and a
script, and shows the state until the end. All processes are ended then."""

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
from penstock_tools.demo.screen import ExecutedAction, Picture, ProcessLine
from penstock_tools.demo.traffic import Traffic

UP_S: Final = 120.0
"""Timeout of the start: seconds until the first event must be acknowledged."""
DRAIN_S: Final = 20.0
"""Longest wait for the consumer at the end; a second request to end cuts it short."""
_POLL_S: Final = 0.05
"""Seconds between two checks of a condition."""
_LEADER_S: Final = 1.0
"""Seconds between two requests for the leader of the engine."""
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Display(Protocol):
    """The output of a demonstration, and the source of interactive actions."""

    every_s: float
    """Seconds between two pictures."""

    def show(self, picture: Picture) -> None:
        """Show the state at this moment."""
        ...

    def show_message(self, text: str) -> None:
        """Show a message: progress of the start, or an action."""
        ...

    def listen(self, act: Callable[[Action], None], end: Callable[[], None]) -> None:
        """Call ``act`` and ``end``, from the running loop, when the user requests it."""
        ...


def run_demo(
    display: Display, script: Sequence[TimedAction] = (), seconds: float | None = None
) -> Picture:
    """Run a demonstration until the display or a signal ends it, or for ``seconds``. Return the
    final state, after the consumer has caught up as far as possible.

    Raises ``InvalidArgument`` if the engine is not installed, and ``Unavailable`` if the cluster
    does not start.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        return asyncio.run(_run(Path(folder), display, script, seconds=seconds))


async def _run(
    folder: Path, display: Display, script: Sequence[TimedAction], seconds: float | None
) -> Picture:
    """Run a demonstration with its files in ``folder``; see :func:`run_demo`."""
    ending = DemoEnding()
    loop = asyncio.get_running_loop()
    for number in _END_SIGNALS:
        loop.add_signal_handler(number, ending.request)
    try:
        with demo_processes(folder) as processes:
            clock = SystemClock()
            demo = DemoRun(
                processes, Traffic(processes.url, clock), display, clock=clock, ending=ending
            )
            async with asyncio.TaskGroup() as tasks:
                demo_tasks = [
                    tasks.create_task(demo.traffic.run(), name="traffic"),
                    tasks.create_task(demo.follow_leader(), name="leader"),
                    tasks.create_task(demo.play(script, seconds), name="script"),
                    tasks.create_task(demo.show(), name="display"),
                ]
                await ending.requested.wait()
                await demo.drain()
                for task in demo_tasks:
                    task.cancel()
            return demo.picture()
    except* PenstockError as failures:
        raise failures.exceptions[0] from None
    finally:
        for number in _END_SIGNALS:
            loop.remove_signal_handler(number)


class DemoEnding:
    """Requests to end a run. After the first, the run waits until the consumer has caught up; after
    the second, it ends immediately."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """Set by the first request."""
        self.is_hurried = False
        """Whether there was a second request."""

    def request(self) -> None:
        """Request the end; called for each signal, and by the display."""
        self.is_hurried = self.requested.is_set()
        self.requested.set()


class DemoRun:
    """One run of a demonstration."""

    def __init__(
        self,
        processes: DemoProcesses,
        traffic: Traffic,
        display: Display,
        clock: Clock,
        ending: DemoEnding,
    ) -> None:
        self.traffic = traffic
        self._processes = processes
        self._display = display
        self._clock = clock
        self._ending = ending
        self._leader = 0
        """Number of the leader among the engine's servers; 0 if it is not known."""
        self._began_us = 0
        """Time of the first acknowledgement; 0 before it."""
        self._executed_actions: list[ExecutedAction] = []

    # --- state ----------------------------------------------------------------------------

    @property
    def _at_s(self) -> float:
        """Seconds since the first acknowledgement; 0 before it."""
        return (self._clock.steady_us() - self._began_us) / 1e6 if self._began_us else 0.0

    def picture(self) -> Picture:
        """Return the current state."""
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
            acknowledgements_per_s=acknowledgements.count_last_second(now_us),
            waiting_s=acknowledgements.waiting_us(now_us) / 1e6,
            published=ledger.published,
            delivered=ledger.delivered,
            outstanding=ledger.outstanding,
            lost=ledger.lost,
            twice=ledger.twice,
            executed_actions=self._timed_actions(now_us),
            trouble=self.traffic.trouble,
        )

    def _server(self, number: int) -> ProcessLine:
        """Return the state of a server of the engine; numbers start at 1."""
        condition: str = self._processes.engine_condition(number)
        leads = condition == "up" and number == self._leader
        where = self._processes.engine.urls[number - 1].removeprefix("nats://")
        return ProcessLine(f"engine {number}", "leads" if leads else condition, where)

    def _timed_actions(self, now_us: int) -> list[ExecutedAction]:
        """Return all actions; the pause of the last one is measured up to now."""
        if not self._executed_actions:
            return []
        last = self._executed_actions[-1]
        longest_s = self.traffic.acknowledgements.longest_us(now_us) / 1e6
        return [*self._executed_actions[:-1], ExecutedAction(last.at_s, last.what, longest_s)]

    async def show(self) -> None:
        """Show the state repeatedly after the first acknowledgement. Raises ``Unavailable`` if the
        cluster does not start."""
        self._display.listen(self.act, self._ending.request)
        await self.wait_until_up()
        while True:
            self._display.show(self.picture())
            await asyncio.sleep(self._display.every_s)

    async def wait_until_up(self) -> None:
        """Wait until the first event is acknowledged and the owner is known."""
        self._display.show_message("starting three engine servers and three nodes")
        started_us = self._clock.steady_us()
        with suppress(TimeoutError):
            async with asyncio.timeout(UP_S):
                # Actions are timed from here and may name "the owner". A node may log that it is
                # the owner after its first client is answered, so both conditions are needed.
                while not (self.traffic.ledger.published and self._processes.owner):
                    self._check_nodes()
                    await asyncio.sleep(_POLL_S)
                self._began_us = self._clock.steady_us()
                up_s = (self._began_us - started_us) / 1e6
                self._display.show_message(
                    f"the first event was acknowledged after {up_s:.1f} s; inspect the cluster "
                    f"with: penstock cluster status --settings {self._processes.settings}"
                )
                return
        raise Unavailable(
            f"no event was acknowledged within {UP_S:.0f} s: {self.traffic.trouble or 'no answer'}"
        )

    def _check_nodes(self) -> None:
        """Raise ``Unavailable`` if a node has ended by itself."""
        for node in self._processes.nodes:
            if failure := node.failure:
                raise Unavailable(f"node {node.name} did not start: {failure}")

    # --- actions --------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Execute an action, and measure the pause of acknowledgements from now on."""
        now_us = self._clock.steady_us()
        self._executed_actions = self._timed_actions(now_us)
        description = self._processes.act(action.verb, action.target, self._leader)
        self._executed_actions.append(ExecutedAction(self._at_s, description, 0.0))
        self.traffic.acknowledgements.restart(now_us)
        self._display.show_message(f"{self._at_s:6.1f} s  {description}")

    async def play(self, script: Sequence[TimedAction], seconds: float | None) -> None:
        """Execute the actions of the script, timed from the first acknowledgement, and end the run
        after ``seconds``."""
        for timed in script:
            await self._wait_until(timed.at_s)
            self.act(timed.action)
        if seconds is not None:
            await self._wait_until(seconds)
            self._ending.requested.set()

    async def _wait_until(self, at_s: float) -> None:
        """Wait until ``at_s`` seconds after the first acknowledgement."""
        while True:
            if self._began_us and self._at_s >= at_s:
                return
            await asyncio.sleep(_POLL_S)

    async def follow_leader(self) -> None:
        """Keep the number of the engine's leader up to date."""
        while True:
            # A request to a frozen server may take seconds and would stop the traffic.
            self._leader = await asyncio.to_thread(self._processes.leader)
            await asyncio.sleep(_LEADER_S)

    async def drain(self) -> None:
        """Stop publishing, and wait until the consumer has caught up."""
        self.traffic.stop_publishing()
        ledger = self.traffic.ledger
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S if ledger.published else 0):
                while True:
                    if self._ending.is_hurried or not self._is_behind():
                        return
                    await asyncio.sleep(_POLL_S)

    def _is_behind(self) -> bool:
        """Return whether a publish is not answered, or the consumer has not got every event."""
        return self.traffic.is_publishing or self.traffic.ledger.outstanding > 0
