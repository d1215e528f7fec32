"""What is done for exports and imports of one file: a tar, down and up (SEM C7)."""

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


async def export_tar(by: Caller, asked: ExportTar) -> ExportedTar:
    """Answered when all of it has been looked at once."""
    realm, kind = by.realm, asked.kind
    session = f"tar-{secrets.token_hex(8)}"
    try:
        begun = await realm.exports.begin(session, asked.name, kind)
        opened = TarOfExport(realm.exports, session, begun)
        manifest = await opened.manifest(kind)
    except BaseException:
        realm.exports.leave(session)
        raise

    sizes = [len(manifest.encoded()), *(file.size for _, file in manifest.in_order())]

    def check() -> None:
        realm.access.check_still(by.principal, realm.clock.now_us())
        realm.access.require(by.principal, operation_on(ExportTar, kind), begun.name)

    return ExportedTar(
        name=f"{file_part(begun.name)}.tar",
        size=sum(map(room, sizes)) + len(END),
        parts=opened.parts(manifest, check),
        close=lambda: realm.exports.leave(session),
    )


async def import_tar(
    by: Caller, asked: ImportTar, parts: AsyncGenerator[bytes, None]
) -> ChannelOpened:
    realm = by.realm
    tar = Tar(parts)
    encoded = await tar.manifest()
    manifest = manifest_from(encoded)
    name = destination_name(asked.name or manifest.name)
    if by.permits is not None:
        by.permits.check_rest(BeginImport(name, encoded))
    session = f"tar-{secrets.token_hex(8)}"
    try:
        known = await realm.imports.begin(session, name, encoded)
        for number, file in manifest.in_order():
            size = await tar.begin(file.name)
            if size != file.size:
                raise DamagedExport(f"{file.name} has {size} bytes; the manifest says {file.size}")
            offset = 0
            async for part in tar.content(size):
                content = memoryview(part)
                await realm.imports.put(session, known, number, offset=offset, content=content)
                offset += len(part)
        async with realm.access.naming(name):
            commit = CommitImport(known)

            async def work() -> ChannelOpened:
                return await realm.imports.commit(session, known)

            if by.permits is None:
                return await work()
            opened: ChannelOpened = await by.permits.permitted(commit, work)
            return opened
    finally:
        realm.imports.leave(session)


class TarOfExport:
    """An export in progress."""

    def __init__(self, exports: Exports, session: str, begun: ExportBegun) -> None:
        self._exports = exports
        self._session = session
        self._begun = begun

    async def manifest(self, kind: Kind) -> Manifest:
        """The manifest. The files are made once for their checksums, and again when they are sent,
        because they are too large to be kept."""
        return manifest_of(
            self._begun, kind, [await self._file(number) for number in range(self._begun.files + 1)]
        )

    async def _file(self, number: int) -> ExportedFile:
        read = await self._exports.read(self._session, self._begun.export, number, offset=0)
        return read.file

    async def parts(
        self, manifest: Manifest, check: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the tar. ``check`` is called between files, and ends the export if it
        raises."""
        encoded = manifest.encoded()
        yield self._header(MANIFEST, len(encoded)) + encoded + padding(len(encoded))
        for number, file in manifest.in_order():
            yield self._header(file.name, file.size)
            offset = 0
            while offset < file.size:
                check()
                read = await self._exports.read(
                    self._session, self._begun.export, number, offset=offset
                )
                if read.file != file:
                    raise Damaged(f"{file.name} has changed while it was being read")
                yield read.content
                offset += len(read.content)
            yield padding(file.size)
        yield END

    def _header(self, name: str, size: int) -> bytes:
        return header(name, size, self._begun.at_us)
