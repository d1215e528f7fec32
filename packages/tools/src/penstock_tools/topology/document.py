"""The contents of a topology: stores and durables, joins, users, groups, rights and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from penstock.client.reading.start_positions import StartLike
from penstock_core.api.requests import Kind
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS, DurableAttributes
from penstock_core.vocabulary.errors import InvalidArgument, Refused

Place = tuple[str | int, ...]
"""The path of a value in a file: keys, and positions in lists."""


class WantedDurable(Struct, frozen=True, kw_only=True):
    """A durable as a file describes it."""

    name: str
    type: str = "shared"
    selector: str = ""
    start: StartLike = "earliest"
    """First position of a new durable; ignored if the durable exists already."""
    persistent: bool | None = None
    """Whether the durable survives a restart; None means that it survives if the channel's events
    do."""
    attributes: DurableAttributes = DURABLE_DEFAULTS
    place: Place = ()
    pattern: str = ""
    """Pattern of the channels that have the durable, in canonical form. Empty if the file lists the
    durable under one channel (SEM D22)."""


class WantedStore(Struct, frozen=True, kw_only=True):
    """A channel or queue as a file describes it. Attributes missing from the file have their
    default values."""

    kind: Kind
    name: str
    definition: Definition
    durables: tuple[WantedDurable, ...] = ()
    place: Place = ()

    @property
    def what(self) -> str:
        """Kind and name, for texts."""
        return f"{self.kind} {self.name}"


class WantedJoin(Struct, frozen=True, kw_only=True):
    """A join as a file describes it."""

    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    place: Place = ()

    @property
    def what(self) -> str:
        """The two ends, for texts."""
        return f"join {self.source} -> {self.destination}"


class WantedUser(Struct, frozen=True, kw_only=True):
    """A user as a file describes it, without a password."""

    name: str
    place: Place = ()


class WantedGroup(Struct, frozen=True, kw_only=True):
    """A group as a file describes it, with all its members."""

    name: str
    members: tuple[str, ...] = ()
    place: Place = ()


class WantedGrant(Struct, frozen=True, kw_only=True):
    """All rights of a subject on the realm, on a channel or queue, or on every store below a
    folder."""

    kind: str
    name: str
    """Name of the channel or queue, or a pattern such as ``eu/*``; empty for the realm."""
    subject: str
    rights: tuple[str, ...]
    place: Place = ()

    @property
    def what(self) -> str:
        """The subject and the resource, for texts."""
        resource = "the realm" if self.kind == "realm" else f"{self.kind} {self.name}"
        return f"rights of {self.subject} on {resource}"


class PipelineFile(Struct, frozen=True, kw_only=True):
    """The file that defines a pipeline."""

    path: Path
    place: Place = ()


class TextOrigin(Protocol):
    """The file that a topology was read from."""

    def locate(self, place: Place, message: str) -> str:
        """Return ``file:line`` of the value that ``message`` complains about; the message may begin
        with a key of the table at ``place``."""
        ...


class Topology(Struct, frozen=True, kw_only=True):
    """The complete configuration of a realm, without events and secrets."""

    stores: tuple[WantedStore, ...] = ()
    """Channels and queues, in the order of the file."""
    durables: tuple[WantedDurable, ...] = ()
    """Durables that are defined for a pattern of channels."""
    joins: tuple[WantedJoin, ...] = ()
    users: tuple[WantedUser, ...] = ()
    groups: tuple[WantedGroup, ...] = ()
    grants: tuple[WantedGrant, ...] = ()
    pipelines: tuple[PipelineFile, ...] = ()
    origin: Any = field(default=None)
    """The :class:`TextOrigin`; None if the topology was read from a realm."""

    @property
    def lists_access(self) -> bool:
        """Whether the topology lists users, groups or rights; if not, those of the realm stay
        unchanged."""
        return bool(self.users or self.groups or self.grants)

    @contextmanager
    def errors_located_at(self, place: Place, what: str) -> Iterator[None]:
        """Convert ``Refused`` to ``InvalidArgument`` with file, line and ``what`` as a prefix."""
        try:
            yield
        except Refused as error:
            raise InvalidArgument(located(self.origin, place, what, message=str(error))) from error


def located(origin: TextOrigin | None, place: Place, what: str, message: str) -> str:
    """Return an error text for a part of a topology, prefixed with file and line if it was read
    from a file."""
    prefix = f"{origin.locate(place, message)}: " if origin is not None else ""
    return f"{prefix}{what}: {message}" if what else f"{prefix}{message}"
