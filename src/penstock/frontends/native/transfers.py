"""What exports, imports (SEM C7) and backups ask of the realm."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.vocabulary.errors import RemoteProtocolViolation
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from penstock.frontends.native.connection import Connection


class Transfers:
    """Those of one connection; they end with it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._exports = connection.realm.exports
        self._imports = connection.realm.imports
        self._backups = connection.realm.backups

    def take(self, message: wire.Transfer, body: memoryview) -> None:
        if isinstance(message, wire.BeginImport) and len(body):
            message = replace(message, manifest=bytes(body))
        permits = self._connection.permits
        if permits is None:
            self._connection.spawn(message.request, lambda: self._answer(message, body))
            return
        self._connection.spawn(
            message.request,
            lambda: permits.permitted(message, lambda: self._answer(message, body)),
        )

    def _answer(self, message: wire.Transfer, body: memoryview) -> Awaitable[Any]:
        session = self._connection.session
        match message:
            case wire.BeginExport(_, name, kind):
                return self._exports.begin(session, name, kind)
            case wire.ReadExport(_, export, file, offset):
                return self._exports.read(session, export, file, offset)
            case wire.EndExport(_, export):
                return self._exports.end(session, export)
            case wire.BeginImport(_, name, manifest):
                return self._imports.begin(session, name, manifest)
            case wire.PutImport(_, known, file, offset):
                if not body:
                    raise RemoteProtocolViolation("a part of a file without bytes")
                return self._imports.put(session, known, file, offset, body)
            case wire.CommitImport(_, known):
                return self._imports.commit(session, known)
            case wire.AbortImport(_, known):
                return self._imports.abort(session, known)
            case _:
                return self._answer_backup(message)

    def _answer_backup(self, message: wire.Transfer) -> Awaitable[Any]:
        session = self._connection.session
        match message:
            case wire.BeginBackup():
                return self._backups.begin(session, self._connection.listener.version)
            case wire.ReadBackup(_, backup, file, offset):
                return self._backups.read(session, backup, file, offset)
            case wire.EndBackup(_, backup):
                return self._backups.end(session, backup)
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

    def leave(self) -> None:
        """The connection has ended."""
        self._exports.leave(self._connection.session)
        self._imports.leave(self._connection.session)
        self._backups.leave(self._connection.session)
