"""Tests that are coroutines and run on a loop of real time; those of virtual time are simulated."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def on_a_loop(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Turn an asynchronous test into a plain one, which runs on an asyncio loop of its own.

    Its parameters stay, so fixtures, marks and parametrised cases work as on any test.
    """

    @functools.wraps(story)
    def life(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(story(*args, **kwargs))

    return life
