"""Contains exceptions of one connection, so that they do not affect the realm, which calls many
connections."""

from __future__ import annotations

from types import TracebackType

from penstock_core.loggers import logger
from penstock_server.frontends.native.hosted_connection import HostedConnection
from penstock_server.frontends.shared.parts import ConnectionPart

_log = logger("penstock.amqp")


class FaultBarrier(ConnectionPart[HostedConnection]):
    """A reusable and reentrant context manager, ``with connection.containing:``. It logs an
    exception and aborts the connection."""

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
