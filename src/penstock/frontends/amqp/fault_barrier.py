"""A barrier between the realm and a connection: a failure while the connection is being told
something must not reach the realm."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from penstock.frontends.amqp.connection import AmqpConnection

_log = structlog.get_logger("penstock.amqp")


class Containing:
    """``with connection.containing:`` whatever fails within is logged and ends the connection
    alone. One serves all, also within each other."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.error("amqp.failed", connection=self._connection.number, exc_info=error)
        self._connection.abort()
        return True
