"""Exports, imports (SEM C7) and backups of a running realm."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.requests import Kind, Request
from penstock.core.bounds import GivenName, Name, Number
from penstock.core.realm.exported_file import ExportedFile
from penstock.core.vocabulary.messages import Definition


class Transfer(Request, frozen=True):
    """Of an export or import."""


class BeginExport(Transfer, frozen=True, tag=75):
    """Capture a channel or queue as it stands now (SEM C7); answered by ``ExportBegun``."""

    name: GivenName
    kind: Kind = "channel"


class ReadExport(Transfer, frozen=True, tag=76):
    """Some bytes of a file of an export, from ``offset`` on; answered by ``ExportedBytes``.

    Files of events are numbered from 0; the state comes after them and is read last.
    """

    export: Name
    file: Number
    offset: Number


class EndExport(Transfer, frozen=True, tag=77):
    export: Name


class BeginImport(Transfer, frozen=True, tag=78):
    """Make a channel or queue out of an export; answered by a name for the import.

    Nothing is seen of it before :class:`CommitImport`.
    """

    name: GivenName
    """What it will be called here."""
    manifest: bytes
    """``manifest.json`` of the export; one too large for a header is the body instead."""


class PutImport(Transfer, frozen=True, tag=79):
    """Body: bytes of a file of the export, from ``offset`` on: the state first, then the files
    of events in their order, each from its beginning to its end."""

    import_: Name
    file: Number
    """Numbered as in :class:`ReadExport`."""
    offset: Number


class CommitImport(Transfer, frozen=True, tag=80):
    """Every file was put: make it true, in one step. Answered by ``ChannelOpened``."""

    import_: Name


class AbortImport(Transfer, frozen=True, tag=81):
    import_: Name


class ExportBegun(Struct, frozen=True, kw_only=True):
    """A channel or queue was captured; its files can be read (SEM C7)."""

    export: str
    """Names it in the requests to come."""
    name: str
    definition: Definition
    realm: str
    """Identity of the realm."""
    at_us: int
    """When it was captured."""
    events: int
    files: int
    """Files of events; the state is one more, read last."""


class ExportedBytes(Struct, frozen=True):
    """Some of a file of an export."""

    file: ExportedFile
    content: bytes


class BeginBackup(Transfer, frozen=True, tag=110):
    """Capture the whole data directory as it stands now; answered by ``BackupBegun``."""


class ReadBackup(Transfer, frozen=True, tag=111):
    """Bytes of one of the captured files, from ``offset`` on; answered by them."""

    backup: Name
    file: Number
    """By its place in ``BackupBegun.files``."""
    offset: Number


class EndBackup(Transfer, frozen=True, tag=112):
    backup: Name


class CapturedFile(Struct, frozen=True):
    """A file of the data directory as long as it was at the moment of a backup."""

    name: str
    """Its path there."""
    size: int
    stamp: int = 0
    """Same name, size and stamp: the same bytes, for ever; 0: that cannot be told."""


class BackupBegun(Struct, frozen=True, kw_only=True):
    """The data directory was captured; its files can be read."""

    backup: str
    realm: str
    """Identity of the realm."""
    name: str
    version: str
    at_us: int
    files: tuple[CapturedFile, ...]
