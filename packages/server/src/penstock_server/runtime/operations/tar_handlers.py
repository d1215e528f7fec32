"""Handlers of exports and imports as a single tar file (SEM C7)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.operations import operation_on
from penstock_core.api.requests import Kind
from penstock_core.api.transfers import (
    BeginImport,
    CommitImport,
    ExportBegun,
    ExportedTar,
    ExportTar,
    ImportTar,
)
from penstock_core.columns.files.exports import MANIFEST, Manifest, manifest_from, manifest_of
from penstock_core.columns.files.tar_entries import END, header, padding, room
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.errors import Damaged, DamagedExport
from penstock_core.vocabulary.names import destination_name, file_part
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.transfer.exports import Exports
from penstock_server.runtime.transfer.tar import Tar


async def export_tar(caller: Caller, request: ExportTar) -> ExportedTar:
    """Begin an export and return its size and parts. All files are read once before the answer,
    because the manifest, which comes first, has their checksums."""
    realm, kind = caller.realm, request.kind
    # The export gets a session for itself, because all calls over HTTP share one session, and
    # `leave` ends all exports of a session.
    session = f"tar-{secrets.token_hex(8)}"
    try:
        export = await realm.exports.begin(session, request.name, kind)
        tar = TarOfExport(realm.exports, session, export)
        manifest = await tar.manifest(kind)
    except BaseException:
        realm.exports.leave(session)
        raise

    sizes = [len(manifest.encoded()), *(file.size for _, file in manifest.in_order())]

    # An export may take hours. Meanwhile the user may be deleted or lose the right.
    def check() -> None:
        realm.access.check_still(caller.principal, realm.clock.now_us())
        realm.access.require(caller.principal, operation_on(ExportTar, kind), export.name)

    return ExportedTar(
        name=f"{file_part(export.name)}.tar",
        size=sum(map(room, sizes)) + len(END),
        parts=tar.parts(manifest, check),
        close=lambda: realm.exports.leave(session),
    )


async def import_tar(
    caller: Caller, request: ImportTar, parts: AsyncGenerator[bytes, None]
) -> ChannelOpened:
    realm = caller.realm
    tar = Tar(parts)
    encoded = await tar.manifest()
    manifest = manifest_from(encoded)
    name = destination_name(request.name or manifest.name)
    if caller.permits is not None:
        caller.permits.check_rest(BeginImport(name, encoded))
    session = f"tar-{secrets.token_hex(8)}"
    try:
        import_id = await realm.imports.begin(session, name, encoded)
        for number, file in manifest.in_order():
            size = await tar.begin(file.name)
            if size != file.size:
                raise DamagedExport(f"{file.name} has {size} bytes; the manifest says {file.size}")
            offset = 0
            async for part in tar.content(size):
                content = memoryview(part)
                await realm.imports.put(session, import_id, number, offset=offset, content=content)
                offset += len(part)
        # The lock is not held during the upload, which may take hours.
        async with realm.access.naming(name):
            commit = CommitImport(import_id)

            async def work() -> ChannelOpened:
                return await realm.imports.commit(session, import_id)

            if caller.permits is None:
                return await work()
            opened: ChannelOpened = await caller.permits.permitted(commit, work)
            return opened
    finally:
        realm.imports.leave(session)


class TarOfExport:
    """An export in progress, as a tar."""

    def __init__(self, exports: Exports, session: str, export: ExportBegun) -> None:
        self._exports = exports
        self._session = session
        self._export = export

    async def manifest(self, kind: Kind) -> Manifest:
        """Return the manifest. The files are generated for their checksums now, and again when they
        are sent, because they are too large to keep in memory."""
        numbers = range(self._export.files + 1)
        return manifest_of(self._export, kind, [await self._file(number) for number in numbers])

    async def _file(self, number: int) -> ExportedFile:
        read = await self._exports.read(self._session, self._export.export, number, offset=0)
        return read.file

    async def parts(
        self, manifest: Manifest, check: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the tar. ``check`` is called before each part; if it raises an error,
        the export ends with that error. Raises ``Damaged`` if a file has changed since the manifest
        was made."""
        encoded = manifest.encoded()
        yield self._header(MANIFEST, len(encoded)) + encoded + padding(len(encoded))
        for number, file in manifest.in_order():
            yield self._header(file.name, file.size)
            offset = 0
            while offset < file.size:
                check()
                read = await self._exports.read(
                    self._session, self._export.export, number, offset=offset
                )
                if read.file != file:
                    raise Damaged(f"{file.name} has changed while it was being read")
                yield read.content
                offset += len(read.content)
            yield padding(file.size)
        yield END

    def _header(self, name: str, size: int) -> bytes:
        return header(name, size, self._export.at_us)
