"""Headers of requests that administer a realm: joins, dead events, pauses, exports, imports."""

from __future__ import annotations

from penstock.core.bounds import GivenName, Name, Number, SelectorText
from penstock.wire.native.headers import Kind, Request


class CreateJoin(Request, frozen=True, tag=70):
    """Copy what is published on one store to another (SEM L1)."""

    source: GivenName
    destination: GivenName
    selector: SelectorText = ""
    archive: bool = False
    """To a queue, duplicates kept (SEM L3)."""


class DeleteJoin(Request, frozen=True, tag=71):
    source: GivenName
    destination: GivenName


class ListJoins(Request, frozen=True, tag=72):
    pass


class Redrive(Request, frozen=True, tag=73):
    """Publish dead events again, each once, and take them out of their store (SEM T10)."""

    source: GivenName
    destination: GivenName = ""
    """Empty: each to where it came from."""
    selector: SelectorText = ""
    dry_run: bool = False


class PausePublishing(Request, frozen=True, tag=74):
    """Refuse publishes and commits of clients, or take them again (SEM X5)."""

    paused: bool


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
