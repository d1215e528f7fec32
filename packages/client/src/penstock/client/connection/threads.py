"""The private event loop behind the blocking client: one thread, started on demand."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import IllegalState, PenstockError, SessionClosed

T = TypeVar("T")


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fast_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, asyncio's own loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_ending = threading.Event()
"""Set when the interpreter ends, before it closes the sessions."""


def interpreter_ends() -> None:
    """Note that the interpreter is about to close the sessions that the program has not."""
    _ending.set()


def is_ending() -> bool:
    """Whether the interpreter is closing the sessions: nobody reads reports any more."""
    return _ending.is_set()


def hold_daemon() -> None:
    """Hold a daemon thread for good if the interpreter has ended its session. Python ends such
    threads without a word, so an error there would only be printed behind the program's output."""
    if _ending.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


class LoopThread:
    """Runs coroutines for blocking callers. Safe to use from several threads."""

    def __init__(self, loop_factory: LoopFactory = fast_loop) -> None:
        self._loop = loop_factory()
        self._pid = os.getpid()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(started,), name="penstock-loop", daemon=True
        )
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(started.set)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks(self._loop))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop, and wait for its result.

        Raises ``IllegalState`` on the loop's own thread, and ``SessionClosed`` after a fork or when
        closed. A different event loop that runs in this thread, as in a notebook, is blocked
        meanwhile. A Ctrl-C ends the wait, and cancels the work.
        """
        try:
            self._check()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except PenstockError:
            work.close()
            hold_daemon()
            raise
        except BaseException as error:  # a Ctrl-C, or another thread has closed the loop
            self._give_up(work)
            if isinstance(error, RuntimeError) and self._loop.is_closed():
                hold_daemon()
                raise SessionClosed("the session is closed") from None
            raise
        try:
            return future.result()
        except CancelledError:
            hold_daemon()
            raise SessionClosed("the session was closed meanwhile") from None
        except PenstockError as error:
            if isinstance(error, SessionClosed):
                hold_daemon()
            # A caller sees the own call; the steps inside the client would hide it.
            raise error.with_traceback(None) from error.__cause__
        except BaseException:
            future.cancel()
            raise

    def _give_up(self, work: Coroutine[Any, Any, object]) -> None:
        """End what the loop may have been given or not. The loop knows, once it would have begun:
        what it has begun goes on, and the rest is closed, so that Python does not complain of work
        that nobody waited for in the middle of the program's output."""

        def look() -> None:
            self._loop.call_soon(end)  # the first step of the work, if there is one, comes before

        def end() -> None:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

        try:
            self._loop.call_soon_threadsafe(look)
        except RuntimeError:  # it is closed, and begins nothing
            work.close()

    def call_from_finalizer(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run what ``begin`` returns, from where nobody could catch an error: the finalizer of a
        generator, which may run in any thread and while the interpreter exits.

        Nothing is raised, as Python would print it in the middle of the program's output. A session
        that has ended has left every seat, and its error listeners were told of a lost connection.
        """
        if os is None or not self.is_usable:  # modules are empty at the very end of the interpreter
            return
        if self.is_own_thread:
            start_task(begin(), name="penstock-closing", on_failure=leave_to_owner)
            return
        with suppress(PenstockError):
            self.call(begin())

    def soon(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop, without waiting; from wherever."""
        refusal = self._end()
        if refusal is not None:
            hold_daemon()
            raise refusal
        self._loop.call_soon_threadsafe(action)

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        """Run ``action`` on the loop after a while, without waiting."""
        if self.is_own_thread:
            self._loop.call_later(delay_s, action)
        else:
            self.soon(lambda: self._loop.call_later(delay_s, action))

    def _end(self) -> PenstockError | None:
        if os.getpid() != self._pid:
            return SessionClosed(
                "this session was opened before a fork; open a new session in the child process"
            )
        if not self._thread.is_alive() or self._loop.is_closed():
            return SessionClosed("the session is closed")
        return None

    def _check(self) -> None:
        ended = self._end()
        if ended is not None:
            raise ended
        if self.is_own_thread:
            raise IllegalState(
                "a blocking call from the client's own thread (an error listener) would wait for "
                "itself for ever; do the work in another thread"
            )

    @property
    def is_usable(self) -> bool:
        """Whether calls can still be made: not closed, and not on the wrong side of a fork."""
        return self._end() is None

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Stop the loop and its thread."""
        if os.getpid() != self._pid or not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        if not self.is_own_thread:
            self._thread.join()


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left: calls that still wait get an error instead of hanging."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
