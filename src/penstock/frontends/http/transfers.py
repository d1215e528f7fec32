"""Exports and imports of a channel or queue over HTTP, as one file (SEM C7).

The file is a tar of the folder that ``penstock channel export`` writes, so either can be imported
either way. The manifest comes first and the events last: an import checks each part as it comes,
and both sides hold one file of the export in memory, however large the channel is.
"""

from __future__ import annotations

import secrets
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

from penstock.api.channels import DescribeChannel
from penstock.api.requests import Kind
from penstock.api.transfers import ExportBegun
from penstock.columns.files.exports import FORMAT, MANIFEST, Manifest, manifest_from
from penstock.core.realm.exported_file import ExportedFile
from penstock.core.vocabulary.errors import Damaged, DamagedExport
from penstock.core.vocabulary.names import destination_name, file_part
from penstock.frontends.http.destinations import may_bury
from penstock.frontends.http.documents import channel_answer
from penstock.frontends.http.realm_shapes import ImportQuery
from penstock.frontends.http.routing import Call, Download, Route, Upload, named
from penstock.frontends.http.shapes import ChannelAnswer, NoQuery, moment
from penstock.runtime.realm import RunningRealm
from penstock.runtime.transfer.exports import Exports

BLOCK: Final = tarfile.BLOCKSIZE
MANIFEST_BYTES_MAX: Final = 64 << 20
PART_BYTES: Final = 1 << 20
"""Bytes passed to an import at a time."""
_ORDER: Final = (
    f"the tar must hold {MANIFEST}, then state.msgpack, then the events in the order of the "
    f"manifest, as an export over HTTP does"
)


async def export(call: Call[NoQuery, None]) -> Download:
    """Export a channel or queue, as it is now, as a tar (SEM C7).

    Unpacked it is the folder that ``penstock channel export`` writes: Arrow files with the events,
    and a manifest with checksums. The answer begins after all files have been read once.
    """
    name, kind = named(call)
    session = f"http-{secrets.token_hex(8)}"
    exports = call.realm.exports
    try:
        begun = await exports.begin(session, name, kind)
        opened = _Export(exports, session, begun)
        manifest = await opened.manifest(kind)
    except BaseException:
        exports.leave(session)
        raise

    def check() -> None:
        call.guard.access.check_still(call.principal, call.realm.clock.now_us())
        call.may(f"{kind}.export", begun.name)

    return Download(
        opened.parts(manifest, check),
        name=f"{file_part(begun.name)}.tar",
        size=sum(map(_room, _sizes(manifest))) + 2 * BLOCK,
        close=lambda: exports.leave(session),
    )


async def import_(call: Call[ImportQuery, Upload]) -> ChannelAnswer:
    """Create a channel or queue from an export, completely or not at all (SEM C7).

    The body is the tar of an export; ``name`` overrides the exported name.
    """
    realm = call.realm
    tar = Tar(call.body.parts)
    encoded = await tar.manifest()
    manifest = manifest_from(encoded)
    may_bury(call, manifest.definition.dead_event_store)
    session = f"http-{secrets.token_hex(8)}"
    name = destination_name(call.query.name or manifest.name)
    access = call.guard.access
    try:
        known = await realm.imports.begin(session, name, encoded)
        for number in (len(manifest.files), *range(len(manifest.files))):
            await _put(realm, session, known, number, manifest, tar)
        async with access.naming(name):
            call.may("channel.import")  # the right may have been revoked during a long upload
            opened = await realm.imports.commit(session, known)
            kind: Kind = "queue" if opened.definition.kind == "queue" else "channel"
            await access.created(call.principal, kind, opened.name)
    finally:
        realm.imports.leave(session)
    return channel_answer(realm, await call.answer(DescribeChannel(opened.name, kind)))


# --- down ---------------------------------------------------------------------------------


class _Export:
    """An export in progress."""

    def __init__(self, exports: Exports, session: str, begun: ExportBegun) -> None:
        self._exports = exports
        self._session = session
        self._begun = begun

    async def manifest(self, kind: Kind) -> Manifest:
        """The manifest. The files are made once for their checksums, and again when they are sent,
        because they are too large to be kept."""
        begun = self._begun
        files = [await self._file(number) for number in range(begun.files + 1)]
        return Manifest(
            format=FORMAT,
            name=begun.name,
            kind=kind,
            definition=begun.definition,
            realm=begun.realm,
            exported=moment(begun.at_us).isoformat(),
            events=begun.events,
            state=files[-1],
            files=tuple(files[:-1]),
        )

    async def _file(self, number: int) -> ExportedFile:
        read = await self._exports.read(self._session, self._begun.export, number, 0)
        return read.file

    async def parts(
        self, manifest: Manifest, check: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of the tar. ``check`` is called between files, and ends the export if it
        raises."""
        encoded = manifest.encoded()
        yield self._header(MANIFEST, len(encoded)) + encoded + _padding(len(encoded))
        for number in (len(manifest.files), *range(len(manifest.files))):
            is_state = number == len(manifest.files)
            file = manifest.state if is_state else manifest.files[number]
            yield self._header(file.name, file.size)
            offset = 0
            while offset < file.size:
                check()
                read = await self._exports.read(self._session, self._begun.export, number, offset)
                if read.file != file:
                    raise Damaged(f"{file.name} has changed while it was being read")
                yield read.content
                offset += len(read.content)
            yield _padding(file.size)
        yield bytes(2 * BLOCK)

    def _header(self, name: str, size: int) -> bytes:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        entry.mtime = self._begun.at_us // 1_000_000
        return entry.tobuf(tarfile.USTAR_FORMAT)


def _sizes(manifest: Manifest) -> list[int]:
    return [len(manifest.encoded()), *(file.size for file in (manifest.state, *manifest.files))]


def _room(size: int) -> int:
    """Bytes that a file of ``size`` bytes takes in a tar."""
    return BLOCK + size + len(_padding(size))


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


# --- up -----------------------------------------------------------------------------------


async def _put(
    realm: RunningRealm, session: str, known: str, number: int, manifest: Manifest, tar: Tar
) -> None:
    is_state = number == len(manifest.files)
    file = manifest.state if is_state else manifest.files[number]
    size = await tar.begin(file.name)
    if size != file.size:
        raise DamagedExport(f"{file.name} has {size} bytes; the manifest says {file.size}")
    offset = 0
    async for part in tar.content(size):
        await realm.imports.put(session, known, number, offset, memoryview(part))
        offset += len(part)


class Tar:
    """Reads the files of a tar in order."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._held = bytearray()

    async def manifest(self) -> bytes:
        """The manifest's bytes. Raises ``DamagedExport`` unless the manifest comes first."""
        size = await self.begin(MANIFEST)
        if size > MANIFEST_BYTES_MAX:
            raise DamagedExport(
                f"{MANIFEST} has {size} bytes; at most {MANIFEST_BYTES_MAX} are allowed"
            )
        return b"".join([part async for part in self.content(size)])

    async def begin(self, name: str) -> int:
        """The size of the next file. Raises ``DamagedExport`` unless it is called ``name``."""
        while True:
            block = await self._take(BLOCK)
            try:
                entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise DamagedExport(
                    f"this is not the tar file of an export: {name} was expected ({error}); "
                    f"{_ORDER}"
                ) from None
            if entry.isreg():
                break
            # Skip folders, and headers that other programs write before a file.
            async for _ in self.content(0 if entry.isdir() else entry.size):
                pass
        if entry.name.removeprefix("./") != name:
            raise DamagedExport(f"{entry.name[:200]!r} came, {name} was expected; {_ORDER}")
        return entry.size

    async def content(self, size: int) -> AsyncIterator[bytes]:
        """The bytes of the file that has begun; the caller must read all of them."""
        left = size
        while left:
            part = await self._take(min(left, PART_BYTES))
            left -= len(part)
            yield part
        await self._take(len(_padding(size)))

    async def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            part = await anext(self._parts, None)
            if part is None:
                raise DamagedExport(f"the tar file ends too early; {_ORDER}")
            self._held += part
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


ROUTES = (
    Route("exportChannel", "GET", "channels/{channel}/export", "channel.export", export),
    Route("exportQueue", "GET", "queues/{queue}/export", "queue.export", export),
    Route("importStore", "POST", "imports", "channel.import", import_, 201),
)
