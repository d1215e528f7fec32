"""Loggers that load structlog only when the first line has to be written.

Structlog imports rich and pygments if they are installed, which takes a fifth of the time to the
first event of an embedded realm. An embedded realm logs only warnings, and most often has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _Pending:
    """The function that sets up the log of an embedded realm; None before it is registered and
    after it was called."""

    set_up: Callable[[], None] | None = None


def set_up_later(set_up: Callable[[], None]) -> None:
    """Call ``set_up`` before the first warning or error is logged; until then, lines of lower
    levels are dropped. If structlog is loaded already, ``set_up`` is called immediately, because
    the application may have configured structlog."""
    _Pending.set_up = set_up
    if "structlog" in sys.modules:
        _set_up()


def _set_up() -> None:
    """Call the pending function, once."""
    if (set_up := _Pending.set_up) is not None:
        # Cleared before the call, which may log a line itself.
        _Pending.set_up = None
        set_up()


class Logger:
    """A structlog logger that is created when its first line is written."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def debug(self, event: str, **values: Any) -> None:
        if not _is_unread():
            self._structlog_logger().debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        if not _is_unread():
            self._structlog_logger().info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        self._structlog_logger().warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        self._structlog_logger().error(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        self._structlog_logger().exception(event, **values)

    def _structlog_logger(self) -> Any:
        _set_up()
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(self._name)
        return self._logger


def _is_unread() -> bool:
    """Whether lines below the level of a warning would be dropped anyway."""
    return _Pending.set_up is not None and "structlog" not in sys.modules


def logger(name: str) -> Logger:
    """Return the logger of a part of Penstock."""
    return Logger(name)
