"""Exports, imports (SEM C7) and backups of a running realm."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Kind, Request
from penstock_core.bounds import GivenName, Name, Number
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.vocabulary.definitions import Definition


class ExportBegun(Struct, frozen=True, kw_only=True):
    """A channel or queue was captured, and its files can be read (SEM C7)."""

    export: str
    """Id of the export in later requests."""
    name: str
    definition: Definition
    realm: str
    """Identity of the realm."""
    at_us: int
    """Time of the capture, in microseconds since 1970."""
    events: int
    files: int
    """Number of files with events. The state is an additional file, which is read last."""


class ExportedBytes(Struct, frozen=True):
    """Bytes of a file of an export."""

    file: ExportedFile
    content: bytes


class CapturedFile(Struct, frozen=True):
    """A file of the data directory, at the length it had at the moment of a backup."""

    name: str
    """Path in the data directory."""
    size: int
    stamp: int = 0
    """Identifies the content: files with the same name, size and stamp have the same bytes at any
    time. 0 if the file may change."""


class BackupBegun(Struct, frozen=True, kw_only=True):
    """The data directory was captured, and its files can be read."""

    backup: str
    realm: str
    """Identity of the realm."""
    name: str
    version: str
    at_us: int
    files: tuple[CapturedFile, ...]


class BeginExport(Request[ExportBegun], frozen=True):
    """Capture a channel or queue as it is now (SEM C7)."""

    name: GivenName
    kind: Kind = "channel"


class ReadExport(Request[ExportedBytes], frozen=True):
    """Read bytes of a file of an export, from ``offset`` on.

    Files with events are numbered from 0; the state comes after them and is read last.
    """

    export: Name
    file: Number
    offset: Number


class EndExport(Request[None], frozen=True):
    """End an export, and release its files."""

    export: Name


class BeginImport(Request[str], frozen=True):
    """Begin to create a channel or queue from an export; the answer is an id for the import.

    The new store is not visible before :class:`CommitImport`.
    """

    name: GivenName
    """Name of the new channel or queue."""
    manifest: bytes
    """The export's ``manifest.json``. A manifest that is too large for a header is in the body
    instead."""


class PutImport(Request[None], frozen=True):
    """Send bytes of a file of the export, in the body, from ``offset`` on: first the state, then
    the files with events in order, each from beginning to end."""

    import_: Name
    file: Number
    """Number of the file, as in :class:`ReadExport`."""
    offset: Number


class CommitImport(Request[ChannelOpened], frozen=True):
    """Finish an import whose files are all sent: create the channel or queue in one step."""

    import_: Name


class AbortImport(Request[None], frozen=True):
    """End an import without creating a channel or queue."""

    import_: Name


class ExportedTar(Struct, frozen=True):
    """An export as a tar file that is generated while the client reads it."""

    name: str
    size: int
    parts: AsyncGenerator[bytes, None]
    close: Callable[[], None]
    """Releases the resources of the export, whether it was read or not."""


class ExportTar(Request[ExportedTar], frozen=True):
    """Export the current content and state of a channel or queue as a tar (SEM C7)."""

    name: GivenName
    kind: Kind = "channel"


class ImportTar(Request[ChannelOpened], frozen=True):
    """Create a channel or queue from an export, completely or not at all (SEM C7). The tar of the
    export is sent separately from the request, in parts."""

    name: GivenName = ""
    """Name of the new channel or queue; empty means the name in the export."""


class BeginBackup(Request[BackupBegun], frozen=True):
    """Capture the whole data directory as it is now."""


class ReadBackup(Request[bytes], frozen=True):
    """Read bytes of a captured file, from ``offset`` on."""

    backup: Name
    file: Number
    """Index of the file in ``BackupBegun.files``."""
    offset: Number


class EndBackup(Request[None], frozen=True):
    """End a backup, and release its files."""

    backup: Name
    is_complete: bool = False
    """Whether the client has read and safely stored all files, so that it counts as a backup."""
