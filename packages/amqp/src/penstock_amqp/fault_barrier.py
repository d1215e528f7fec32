"""Keeps a failing connection from harming the realm, which calls into many connections."""

from __future__ import annotations

from types import TracebackType

from penstock_core.loggers import logger
from penstock_server.frontends.native.hosted_connection import HostedConnection
from penstock_server.frontends.shared.parts import ConnectionPart

_log = logger("penstock.amqp")


class FaultBarrier(ConnectionPart[HostedConnection]):
    """A context manager, ``with connection.containing:``. An exception inside is logged, and ends
    that connection alone. One object serves all uses, nested ones, too."""

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
