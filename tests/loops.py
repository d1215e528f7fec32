"""Runs coroutine tests on event loops with real time; ``simulated`` is for virtual time."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pytest

from penstock.client.connection.threads import fast_loop
from penstock_testing.loop import SimLoop

P = ParamSpec("P")
T = TypeVar("T")

EACH_LOOP = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, fast_loop], ids=["asyncio", "fast"]
)
"""Parametrizes a test by asyncio's own loop and by the loop of servers, which is uvloop's if that
is installed."""


def on_a_loop(story: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn an asynchronous test, or a step of one, into a plain function, which runs on a new loop.

    It has the same parameters, so fixtures, marks and parametrized cases work as on any test.
    """

    @functools.wraps(story)
    def life(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(story(*args, **kwargs))

    return life


def on_each_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn an asynchronous test into two plain ones: one on asyncio's loop, one on that of servers.
    The test itself does not see which."""

    @functools.wraps(story)
    def life(loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(story(**fixtures))

    signature = inspect.signature(story)
    chosen = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), chosen]
    life.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by pytest
    on_both_loops: Callable[..., None] = EACH_LOOP(life)
    return on_both_loops


def the_loop() -> SimLoop:
    """Return the loop with virtual time on which the caller runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
