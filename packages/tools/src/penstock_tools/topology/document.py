"""What a topology says: stores with their durables, joins, users, groups, rights and pipelines."""

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
"""Where something stands in a file: keys, and positions in lists."""


class WantedDurable(Struct, frozen=True, kw_only=True):
    """A durable as a file has it."""

    name: str
    type: str = "shared"
    selector: str = ""
    start: StartLike = "earliest"
    """Where it begins; counts only when it is created."""
    persistent: bool | None = None
    """None: where the channel's events survive a restart."""
    attributes: DurableAttributes = DURABLE_DEFAULTS
    place: Place = ()
    pattern: str = ""
    """The channels that have it, in canonical form; empty: the one that it stands at (SEM D22)."""


class WantedStore(Struct, frozen=True, kw_only=True):
    """A channel or queue as a file has it. Attributes that the file leaves out have their
    defaults."""

    kind: Kind
    name: str
    definition: Definition
    durables: tuple[WantedDurable, ...] = ()
    place: Place = ()

    @property
    def what(self) -> str:
        return f"{self.kind} {self.name}"


class WantedJoin(Struct, frozen=True, kw_only=True):
    """A join as a file has it."""

    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    place: Place = ()

    @property
    def what(self) -> str:
        return f"join {self.source} -> {self.destination}"


class WantedUser(Struct, frozen=True, kw_only=True):
    """A user as a file has it: without its password."""

    name: str
    place: Place = ()


class WantedGroup(Struct, frozen=True, kw_only=True):
    """A group as a file has it, with all of its members."""

    name: str
    members: tuple[str, ...] = ()
    place: Place = ()


class WantedGrant(Struct, frozen=True, kw_only=True):
    """All rights that a subject has on the realm, on a channel or queue, or on all below a
    folder."""

    kind: str
    name: str
    """Name of the channel or queue, or a pattern such as ``eu/*``; empty: the realm."""
    subject: str
    rights: tuple[str, ...]
    place: Place = ()

    @property
    def what(self) -> str:
        where = "the realm" if self.kind == "realm" else f"{self.kind} {self.name}"
        return f"rights of {self.subject} on {where}"


class PipelineFile(Struct, frozen=True, kw_only=True):
    """A pipeline's definition, which stands in a file of its own."""

    path: Path
    place: Place = ()


class TextOrigin(Protocol):
    """The file that a topology was read from."""

    def at(self, place: Place, said: str) -> str:
        """The file and the line of what ``said``, an error that may begin with a key, is about."""
        ...


class Topology(Struct, frozen=True, kw_only=True):
    """Everything that a realm consists of, besides events and secrets."""

    stores: tuple[WantedStore, ...] = ()
    """Channels and queues, in the order of the file."""
    durables: tuple[WantedDurable, ...] = ()
    """Durables over patterns."""
    joins: tuple[WantedJoin, ...] = ()
    users: tuple[WantedUser, ...] = ()
    groups: tuple[WantedGroup, ...] = ()
    grants: tuple[WantedGrant, ...] = ()
    pipelines: tuple[PipelineFile, ...] = ()
    origin: Any = field(default=None)
    """The :class:`TextOrigin`; None: it was read from a realm."""

    @property
    def tells_access(self) -> bool:
        """Whether it says anything of users, groups and rights; if not, they are left alone."""
        return bool(self.users or self.groups or self.grants)

    @contextmanager
    def naming(self, place: Place, what: str) -> Iterator[None]:
        """Refusals inside become ``InvalidArgument``, with file, line and ``what`` put ahead."""
        try:
            yield
        except Refused as error:
            raise InvalidArgument(located(self.origin, place, what, said=str(error))) from error


def located(origin: TextOrigin | None, place: Place, what: str, said: str) -> str:
    """An error about a part of a topology, with the place where it stands if it is in a file."""
    at = f"{origin.at(place, said)}: " if origin is not None else ""
    return f"{at}{what}: {said}" if what else f"{at}{said}"
