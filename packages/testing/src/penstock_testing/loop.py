"""A seeded asyncio loop on virtual time: equal seeds give equal interleavings and results."""

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
"""Initial time of a loop, in microseconds since 1970."""

ROUNDS_MAX = 20_000
"""Maximum number of rounds of a loop in one instant; a simulation with more makes no progress."""


CPU_S_MAX = 60.0
"""Maximum number of seconds of processor time of one simulation; most need a hundredth of it."""


class Deadlock(AssertionError):
    """All tasks wait for each other, and no timer is set."""


class Livelock(AssertionError):
    """Tasks wake each other endlessly, so that time does not pass."""


class UnretrievedFailure(AssertionError):
    """A background task failed, and its exception was never retrieved."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that moves the clock to the next timer instead of waiting for sockets."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.loop.elapsed_s += max(timeout, 0.0)
        return []


class _SimTask(asyncio.Task[Any]):
    """A task whose hash is its creation number, so that the order of sets of tasks does not depend
    on memory addresses."""

    def __init__(self, work: Any, *, loop: SimLoop, **arguments: Any) -> None:
        self.number = loop.next_number()
        self.machine = (
            arguments["context"].get(MACHINE, "") if "context" in arguments else MACHINE.get()
        )
        """The simulated machine on which the task runs."""
        super().__init__(work, loop=loop, **arguments)

    def __hash__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return getattr(self.get_coro(), "__qualname__", "a task")


class _SimFuture(asyncio.Future[Any]):
    """A future whose hash is its creation number, so that the order of sets of futures does not
    depend on memory addresses."""

    def __init__(self, *, loop: SimLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with a virtual clock that its selector moves. Sleeping takes no real time.

    The loop is also a :class:`~penstock_core.vocabulary.ports.Clock`.
    """

    start_us = START_US
    """Initial time of the clock, in microseconds since 1970."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.elapsed_s = 0.0
        """Virtual seconds since the creation of the loop."""
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed_s

    def now_us(self) -> int:
        return self.start_us + self.steady_us()

    def steady_us(self) -> int:
        return int(self.elapsed_s * 1_000_000)


class SimLoop(VirtualTimeLoop):
    """Runs ready callbacks in an order drawn from the seed; time passes when all tasks wait.

    Connections use the simulated :attr:`network`.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        self.shuffles = True
        """Whether the callbacks of a round run in random order, as if threads had scheduled them.
        If false, they run in the order of becoming ready, as clients may expect."""
        self._random = random
        self._numbers = 0
        """The newest number that was drawn."""
        self.tasks: dict[_SimTask, None] = {}
        """Tasks that are not done, oldest first."""
        self.failed: list[_SimTask] = []
        """Tasks that failed while no other task awaited them."""
        self.network = SimNetwork(self, random)
        self._instant_s = 0.0
        """The current instant, in virtual seconds."""
        self._rounds = 0
        """Number of rounds in the current instant."""
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_new_task)

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def kill(self, machine: str) -> None:
        """Kill the programs of a machine: reset its connections and cancel its tasks."""
        self.network.kill(machine)
        for task in [task for task in self.tasks if task.machine == machine]:
            task.cancel()

    def next_number(self) -> int:
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
        """Count a round. Raises :class:`Livelock` if the instant has too many."""
        if self.elapsed_s != self._instant_s:
            self._instant_s, self._rounds = self.elapsed_s, 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._rounds = 0  # the runner still has to cancel the tasks
            busy = ", ".join(sorted({_callback_name(handle) for handle in self._ready}))
            raise Livelock(
                f"time does not pass after {ROUNDS_MAX:,} rounds at {self.elapsed_s:.6f} s; "
                f"busy: {busy}"
            )


def _new_task(loop: asyncio.AbstractEventLoop, work: Any, **arguments: Any) -> asyncio.Task[Any]:
    """Create a task, as the task factory of the loop."""
    assert isinstance(loop, SimLoop), "only SimLoop uses this factory"
    task = _SimTask(work, loop=loop, **arguments)
    loop.tasks[task] = None
    task.add_done_callback(lambda done: _forget_task(task, loop))
    return task


def _forget_task(task: _SimTask, loop: SimLoop) -> None:
    """Remove a task that is done, and record it if its error was not retrieved."""
    loop.tasks.pop(task, None)
    if _has_unretrieved_error(task):
        loop.failed.append(task)


def _has_unretrieved_error(task: _SimTask) -> bool:
    """Return whether a task failed and its exception was not retrieved."""
    # asyncio has no public way to ask; it clears this flag when the exception is retrieved.
    return bool(task._log_traceback)


def _callback_name(handle: asyncio.Handle) -> str:
    """Return the name of the coroutine or callback that a handle runs."""
    callback: Any = handle._callback  # type: ignore[attr-defined]  # asyncio shows it in repr only
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return str(coroutine.__qualname__)
    return str(getattr(callback, "__qualname__", callback))


class SlowOffload:
    """Runs blocking calls in the loop's thread; each takes a random virtual time."""

    def __init__(self, random: Random, *, longest_s: float) -> None:
        self._random = random
        self._longest_s = longest_s

    async def __call__(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(self._random.random() * self._longest_s)
        result = call()
        await asyncio.sleep(self._random.random() * self._longest_s)
        return result


def elapsed_s() -> float:
    """Return real seconds since an arbitrary moment, for reporting the duration of a simulation."""
    return time.perf_counter()


async def pass_time(seconds: float) -> None:
    """Let virtual time pass. Raises ``AssertionError`` on a real loop, where tests must not
    sleep."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "the loop is on real time"
    await asyncio.sleep(seconds)


def simulate(life: Coroutine[Any, Any, T], random: Random, *, cpu_s_max: float = CPU_S_MAX) -> T:
    """Run ``life`` to its end on a new loop, and return its result. It may use up to
    ``cpu_s_max`` seconds of processor time.

    Raises :class:`Deadlock` or :class:`Livelock` if it can never end, and
    :class:`UnretrievedFailure` if a background task failed and its exception was not retrieved.
    Without that check, the garbage collector would report the failure during another test, and
    CPython 3.11 would fail that test if it was parsing a program at that moment.
    """
    loop = SimLoop(random)
    with (
        _cpu_time_limited(cpu_s_max),
        _machine_hidden(random),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        result = runner.run(life)
    for task in filter(_has_unretrieved_error, loop.failed):
        raise UnretrievedFailure(f"{task} failed in the background") from task.exception()
    return result


def simulated(story: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn an asynchronous test into a synchronous one that runs under :func:`simulate`.

    The parameters are kept, so fixtures, marks and parametrised cases work as usual. The parameter
    ``seed``, if present, seeds the loop; the default seed is 1.
    """
    signature = inspect.signature(story)

    @functools.wraps(story)
    def life(*args: P.args, **kwargs: P.kwargs) -> T:
        seed = signature.bind(*args, **kwargs).arguments.get("seed", 1)
        return simulate(story(*args, **kwargs), Random(seed))

    return life


@contextlib.contextmanager
def _machine_hidden(random: Random) -> Iterator[None]:
    """Draw identities from the seed, and hide the names of the real machine and user."""
    # The number of identities must not change the order of the callbacks.
    draw = Random(random.getrandbits(64))
    saved = uuid.uuid4, socket.gethostname, getpass.getuser
    uuid.uuid4 = lambda: uuid.UUID(int=draw.getrandbits(128), version=4)
    socket.gethostname = lambda: "simulated"
    getpass.getuser = lambda: "somebody"
    try:
        yield
    finally:
        uuid.uuid4, socket.gethostname, getpass.getuser = saved


@contextlib.contextmanager
def _cpu_time_limited(cpu_s_max: float) -> Iterator[None]:
    """Stop a simulation in which one step of a task never ends; the count of rounds does not detect
    that."""
    # Signals work in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Livelock(f"the simulation did not end within {cpu_s_max} s of processor time")

    saved_handler = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s_max)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, saved_handler)
