"""Tasks that outlive the call that starts them.

``asyncio`` reports a failure when the task is awaited, or when it is collected as garbage, which
may never happen. If a TaskGroup does not fit, because start and end are two calls, ``start_task``
reports the failure immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

OnFailure = Callable[[BaseException], object]
"""Called with the failure of a task."""


def leave_to_owner(_: BaseException) -> None:
    """Ignore the failure of a task whose owner awaits the task, because it is raised there."""


def start_task(
    work: Coroutine[Any, Any, T], *, name: str | None = None, on_failure: OnFailure | None = None
) -> asyncio.Task[T]:
    """Run ``work`` on the running loop. The caller keeps the task and ends it.

    A failure is passed to ``on_failure``, or otherwise to the loop's exception handler, which logs
    it. A cancelled task has not failed.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=name)

    def report_failure(ended: asyncio.Task[T]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is None:
            return
        if on_failure is not None:
            on_failure(error)
            return
        loop.call_exception_handler(
            {"message": f"{ended.get_name()} has failed", "exception": error, "task": ended}
        )

    task.add_done_callback(report_failure)
    return task
