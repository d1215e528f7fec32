"""Tests that are coroutines and run on a loop of real time; those of virtual time are simulated."""

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
"""asyncio's own loop, and the one a server runs on where uvloop is installed."""


def on_a_loop(story: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn an asynchronous test, or a step of one, into a plain function, which runs on a loop of
    its own.

    Its parameters stay, so fixtures, marks and parametrised cases work as on any test.
    """

    @functools.wraps(story)
    def life(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(story(*args, **kwargs))

    return life


def on_each_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn an asynchronous test into two plain ones, one on asyncio's loop and one on the fast
    one; the test itself does not see which."""

    @functools.wraps(story)
    def life(loop_factory: Callable[[], asyncio.AbstractEventLoop], **given: object) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(story(**given))

    signature = inspect.signature(story)
    chosen = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), chosen]
    life.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by pytest
    both: Callable[..., None] = EACH_LOOP(life)
    return both


def the_loop() -> SimLoop:
    """The loop of virtual time on which a story runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop
