"""Tasks that outlive the call that starts them.

``asyncio`` tells of a failure when somebody awaits the task, or when the task is collected as
garbage, which may be never. Where a TaskGroup does not fit, because start and end are two calls,
``start_task`` sees to it that the failure is heard at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

OnFailure = Callable[[BaseException], object]


def leave_to_owner(_: BaseException) -> None:
    """Say nothing, for a task that its owner awaits to its end: the failure is raised there."""


def start_task(
    work: Coroutine[Any, Any, T], *, name: str | None = None, on_failure: OnFailure | None = None
) -> asyncio.Task[T]:
    """Run ``work`` on the running loop. The caller keeps the task, and ends it.

    What it fails with goes to ``on_failure``, or else to the loop's exception handler, which logs
    it; a task that was cancelled has not failed.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=name)

    def look(ended: asyncio.Task[T]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is None:
            return
        if on_failure is not None:
            on_failure(error)
            return
        loop.call_exception_handler(
            {"message": f"{ended.get_name()} has failed", "exception": error, "task": ended}
        )

    task.add_done_callback(look)
    return task
