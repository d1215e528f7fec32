"""A seeded asyncio loop on virtual time: the same seed gives the same interleaving and result."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import inspect
import selectors
import signal
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, ParamSpec, TypeVar

from penstock_testing.network import MACHINE, SimNetwork

T = TypeVar("T")
P = ParamSpec("P")

START_US = 1_700_000_000_000_000
"""What the clock shows when a loop is made, in microseconds since 1970."""

ROUNDS_MAX = 20_000
"""Most rounds of a loop in one instant; a simulation that needs more makes no progress."""


CPU_S_MAX = 60
"""Most seconds of processor time for one simulation; usual ones take a hundredth of it."""


class Deadlock(AssertionError):
    """Every task waits for another, and no timer is set: nothing would ever happen again."""


class Livelock(AssertionError):
    """Tasks wake each other without end while no time passes: nothing else would ever happen."""


class Unheard(AssertionError):
    """A task failed in the background, and nobody asked how it ended."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that moves the clock to the next timer instead of waiting for sockets."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.loop.elapsed_s += max(timeout, 0.0)
        return []


class _SimTask(asyncio.Task[Any]):
    """A task ordered by its age in sets, and not by its address in memory."""

    def __init__(self, work: Any, *, loop: SimLoop, **more: Any) -> None:
        self.number = loop.number()
        self.machine = more["context"].get(MACHINE, "") if "context" in more else MACHINE.get()
        """The simulated machine it runs on."""
        super().__init__(work, loop=loop, **more)

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return getattr(self.get_coro(), "__qualname__", "something")


class _SimFuture(asyncio.Future[Any]):
    def __init__(self, *, loop: SimLoop) -> None:
        self.number = loop.number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a clock of its own, which its selector moves. Sleeping takes no real time.

    It is a :class:`~penstock_core.vocabulary.ports.Clock`, too.
    """

    start_us = START_US
    """What the clock shows when the loop is made."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.elapsed_s = 0.0
        """Virtual seconds since the loop was made."""
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed_s

    def now_us(self) -> int:
        return self.start_us + self.steady_us()

    def steady_us(self) -> int:
        return int(self.elapsed_s * 1_000_000)


class SimLoop(VirtualTimeLoop):
    """Runs ready callbacks in an order drawn from the seed; time passes when every task waits.

    Its connections are those of :attr:`network`.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        self.shuffles = True
        """Whether the callbacks of one round run in any order, as those of threads would. If false
        they keep the order in which they became ready, on which a client may rely."""
        self._random = random
        self._numbers = 0
        self.tasks: dict[_SimTask, None] = {}
        """Tasks that are not done, oldest first."""
        self.failed: list[_SimTask] = []
        """Tasks that ended by an error."""
        self.network = SimNetwork(self, random)
        self._instant_s = 0.0
        self._rounds = 0
        """Rounds in this instant."""
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_new_task)

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def kill(self, machine: str) -> None:
        """Kill the programs of a machine, as far as other machines can see."""
        self.network.kill(machine)
        for task in [task for task in self.tasks if task.machine == machine]:
            task.cancel()

    def number(self) -> int:
        """Draw the next number."""
        self._numbers += 1
        return self._numbers

    async def create_connection(  # type: ignore[override]  # the two forms that are in use
        self, make: Any, host: str, port: int, *, ssl: None = None
    ) -> Any:
        assert ssl is None, "the network in memory is plain"
        return await self.network.create_connection(make, host, port)

    async def create_server(  # type: ignore[override]
        self,
        make: Any,
        host: str,
        port: int,
        *,
        ssl: None = None,
        ssl_handshake_timeout: None = None,
    ) -> Any:
        assert ssl is ssl_handshake_timeout is None, "the network in memory is plain"
        return await self.network.create_server(make, host, port)

    def _run_once(self) -> None:
        self._count_round()
        if self.shuffles:
            ready = list(self._ready)
            self._random.shuffle(ready)
            self._ready.clear()
            self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]  # private to asyncio, stable since 3.4

    def _count_round(self) -> None:
        if self.elapsed_s != self._instant_s:
            self._instant_s, self._rounds = self.elapsed_s, 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._rounds = 0  # the callee may end its tasks
            busy = ", ".join(sorted({_wakes(handle) for handle in self._ready}))
            raise Livelock(
                f"{ROUNDS_MAX:,} rounds at {self.elapsed_s:.6f} s and no time passes; busy: {busy}"
            )


def _new_task(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, SimLoop), "it is its factory"
    task = _SimTask(work, loop=loop, **more)
    loop.tasks[task] = None
    task.add_done_callback(lambda done: _ended(task, loop))
    return task


def _ended(task: _SimTask, loop: SimLoop) -> None:
    loop.tasks.pop(task, None)
    if _unheard(task):
        loop.failed.append(task)


def _unheard(task: _SimTask) -> bool:
    """Whether a task ended by an error that nobody asked for."""
    return bool(task._log_traceback)


def _wakes(handle: asyncio.Handle) -> str:
    """A description of what a handle continues with."""
    callback: Any = handle._callback  # type: ignore[attr-defined]  # asyncio shows it in repr only
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return str(coroutine.__qualname__)
    return str(getattr(callback, "__qualname__", callback))


class SlowOffload:
    """Runs blocking calls in place, and lets each take a moment of virtual time."""

    def __init__(self, random: Random, *, longest_s: float) -> None:
        self._random = random
        self._longest_s = longest_s

    async def __call__(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(self._random.random() * self._longest_s)
        made = call()
        await asyncio.sleep(self._random.random() * self._longest_s)
        return made


def elapsed_s() -> float:
    """Real seconds since an arbitrary moment: for reporting how long a simulation took."""
    return time.perf_counter()


async def pass_time(seconds: float) -> None:
    """Let virtual time pass. It refuses to run on a real loop, where a test must not sleep."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "real time is not ours to spend"
    await asyncio.sleep(seconds)


def simulate(life: Coroutine[Any, Any, T], random: Random) -> T:
    """Run ``life`` to its end on a loop of its own.

    Raises :class:`Deadlock` or :class:`Livelock` if it can never end, and :class:`Unheard` if a
    task failed and nobody asked how it ended. Told later it would be told in the middle of some
    other test, whenever the garbage collector finds the task: CPython 3.11 then fails what that
    test does if it parses a program.
    """
    loop = SimLoop(random)
    with (
        _cpu_time_limited(),
        _any_machine(random),
        asyncio.Runner(loop_factory=lambda: loop) as one,
    ):
        made = one.run(life)
    for task in filter(_unheard, loop.failed):
        raise Unheard(f"{task} failed in the background") from task.exception()
    return made


def simulated(story: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn an asynchronous test into a plain one, which runs as :func:`simulate` does.

    Its parameters stay, so fixtures, marks and parametrised cases work as on any test. A parameter
    ``seed`` seeds the loop; without one the seed is 1.
    """
    signature = inspect.signature(story)

    @functools.wraps(story)
    def life(*args: P.args, **kwargs: P.kwargs) -> T:
        seed = signature.bind(*args, **kwargs).arguments.get("seed", 1)
        return simulate(story(*args, **kwargs), Random(seed))

    return life


@contextlib.contextmanager
def _any_machine(random: Random) -> Iterator[None]:
    """Draw identities from the seed, and hide the names of the real machine and user."""
    draw = Random(random.getrandbits(64))
    before = uuid.uuid4, socket.gethostname, getpass.getuser
    uuid.uuid4 = lambda: uuid.UUID(int=draw.getrandbits(128), version=4)
    socket.gethostname = lambda: "simulated"
    getpass.getuser = lambda: "somebody"
    try:
        yield
    finally:
        uuid.uuid4, socket.gethostname, getpass.getuser = before


@contextlib.contextmanager
def _cpu_time_limited() -> Iterator[None]:
    """Stop a task whose single step never ends, which no count of rounds would notice."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals work in the main thread only
        return

    def stop(*_: object) -> None:
        raise Livelock(f"{CPU_S_MAX} s of computing, and the life has not come to its end")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
