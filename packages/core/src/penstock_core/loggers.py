"""Loggers that load structlog with the first line somebody is to read.

Structlog brings rich and pygments along where these are installed: a fifth of the time to the first
event of an embedded realm, which logs warnings only and most often has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _Pending:
    """How an embedded realm sets up the log, until that has been done."""

    set_up: Callable[[], None] | None = None


def set_up_later(set_up: Callable[[], None]) -> None:
    """Have ``set_up`` called before the first line that is a warning or worse; at once where
    structlog is loaded already, because the application may have set it up. Until then lines that
    are less are nobody's."""
    _Pending.set_up = set_up
    if "structlog" in sys.modules:
        _set_up()


def _set_up() -> None:
    if (set_up := _Pending.set_up) is not None:
        _Pending.set_up = None
        set_up()


class Logger:
    """Logger of structlog that is made when a line is to be written."""

    __slots__ = ("_made", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None

    def debug(self, event: str, **values: Any) -> None:
        if not _is_unread():
            self._logger().debug(event, **values)

    def info(self, event: str, **values: Any) -> None:
        if not _is_unread():
            self._logger().info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        self._logger().warning(event, **values)

    def error(self, event: str, **values: Any) -> None:
        self._logger().error(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        self._logger().exception(event, **values)

    def _logger(self) -> Any:
        _set_up()
        if self._made is None:
            import structlog

            self._made = structlog.get_logger(self._name)
        return self._made


def _is_unread() -> bool:
    """Whether a line that is no warning would be left out anyway."""
    return _Pending.set_up is not None and "structlog" not in sys.modules


def logger(name: str) -> Logger:
    """The logger of a part of Penstock."""
    return Logger(name)
