"""Exports, imports (SEM C7) and backups of a running realm."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.channels import ChannelOpened
from penstock.api.requests import Kind, Request
from penstock.core.bounds import GivenName, Name, Number
from penstock.core.realm.exported_file import ExportedFile
from penstock.core.vocabulary.messages import Definition


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


class BeginExport(Request[ExportBegun], frozen=True):
    """Capture a channel or queue as it stands now (SEM C7); answered by ``ExportBegun``."""

    name: GivenName
    kind: Kind = "channel"


class ReadExport(Request[ExportedBytes], frozen=True):
    """Some bytes of a file of an export, from ``offset`` on; answered by ``ExportedBytes``.

    Files of events are numbered from 0; the state comes after them and is read last.
    """

    export: Name
    file: Number
    offset: Number


class EndExport(Request[None], frozen=True):
    export: Name


class BeginImport(Request[str], frozen=True):
    """Make a channel or queue out of an export; answered by a name for the import.

    Nothing is seen of it before :class:`CommitImport`.
    """

    name: GivenName
    """What it will be called here."""
    manifest: bytes
    """``manifest.json`` of the export; one too large for a header is the body instead."""


class PutImport(Request[None], frozen=True):
    """Body: bytes of a file of the export, from ``offset`` on: the state first, then the files
    of events in their order, each from its beginning to its end."""

    import_: Name
    file: Number
    """Numbered as in :class:`ReadExport`."""
    offset: Number


class CommitImport(Request[ChannelOpened], frozen=True):
    """Every file was put: make it true, in one step. Answered by ``ChannelOpened``."""

    import_: Name


class AbortImport(Request[None], frozen=True):
    import_: Name


class BeginBackup(Request[BackupBegun], frozen=True):
    """Capture the whole data directory as it stands now; answered by ``BackupBegun``."""


class ReadBackup(Request[bytes], frozen=True):
    """Bytes of one of the captured files, from ``offset`` on; answered by them."""

    backup: Name
    file: Number
    """By its place in ``BackupBegun.files``."""
    offset: Number


class EndBackup(Request[None], frozen=True):
    backup: Name
