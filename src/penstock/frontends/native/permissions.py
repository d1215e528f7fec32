"""What the principal of a native connection may ask for: each request as operations (SEM A).

The tables name the operations of every request; a test holds each request to exactly one table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from penstock.api import access as accounts
from penstock.api.channels import ChannelOpened
from penstock.api.transfers import ExportBegun
from penstock.columns.files.exports import manifest_from
from penstock.core.access.rights import OPERATIONS, READING, WRITING, Principal
from penstock.core.realm.directory import SCHEDULE_PREFIX, Directory
from penstock.core.vocabulary.errors import (
    AccessDenied,
    InvalidArgument,
    NameDoesNotExist,
    PenstockError,
)
from penstock.core.vocabulary.messages import Definition
from penstock.core.vocabulary.names import destination_name
from penstock.runtime.access.access import Access
from penstock.runtime.access.accounts import checked_resource
from penstock.wire.native import messages as wire

Asked = tuple[str, str]
"""An operation, and the name of what it is about."""
Opening = wire.Subscribe | wire.Attach | wire.BrowseDurable

_PUBLISH: Final = (WRITING["channel"], WRITING["queue"])
_READ: Final = (READING["channel"], READING["queue"])
_OPEN: Final = ("channel.open", "queue.open")
_PURGE: Final = ("channel.purge", "queue.purge")

BY_NUMBER: Mapping[type[wire.Request], tuple[str, str]] = MappingProxyType(
    {
        wire.PublishEvents: _PUBLISH,
        wire.StageEvents: _PUBLISH,
        wire.CommitStages: _PUBLISH,
        wire.Subscribe: _READ,
        wire.DescribeColumns: _READ,
        wire.Locate: _READ,
        wire.DescribeMissing: _READ,
        wire.PurgeChannel: _PURGE,
        wire.OpenSchedule: _OPEN,
        wire.Attach: ("durable.attach", "queue.pop"),
        wire.BrowseDurable: ("durable.browse", "queue.peek"),
        # A queue has none: whoever may open it hears so.
        wire.ListDurables: ("durable.list", "queue.open"),
        wire.DescribeDurable: ("durable.describe", "queue.open"),
        wire.DescribeOutstanding: ("durable.browse", "queue.peek"),
        wire.CreateDurable: ("durable.create", "queue.open"),
        wire.DeleteDurable: ("durable.delete", "queue.open"),
        wire.PurgeDurable: ("durable.purge", "queue.open"),
        wire.UnbindDurable: ("durable.unbind", "queue.open"),
    }
)
"""About a store by number: the operation on a channel, and on a queue."""

CHOOSING = (wire.PurgeChannel, wire.PurgeDurable, wire.CreateDurable)
"""Of these: what has a selector tells something about events, and asks for the right to read them,
too."""

BY_NUMBERS: tuple[type[wire.Request], ...] = (
    *BY_NUMBER,
    *(wire.BeginTransaction, wire.CommitTransaction, wire.CommitStagedParts),
)
"""About stores whose names their client may not know."""

BY_NAME: Mapping[type[wire.Request], str] = MappingProxyType(
    {
        wire.OpenChannel: "open",
        wire.DeleteChannel: "delete",
        wire.DescribeChannel: "describe",
        wire.MaintainChannel: "maintain",
        wire.BeginExport: "export",
    }
)
"""About a channel or queue by name and kind: what follows the kind in the operation's name."""

ON_REALM: Mapping[type[wire.Request], str] = MappingProxyType(
    {
        wire.DescribeRealm: "realm.describe",
        wire.PausePublishing: "realm.pause",
        wire.BeginBackup: "realm.backup",
        wire.ListJoins: "join.list",
        wire.DeleteJoin: "join.delete",
        wire.AbortTransaction: "transaction.describe",
        wire.DescribeTransaction: "transaction.describe",
        accounts.WhoAmI: "me.read",
        accounts.BeginPassword: "me.read",
        accounts.ListUsers: "user.list",
        accounts.CreateUser: "user.change",
        accounts.DeleteUser: "user.change",
        accounts.ListGroups: "group.list",
        accounts.CreateGroup: "group.change",
        accounts.ChangeGroup: "group.change",
        accounts.DeleteGroup: "group.change",
        accounts.ReadAudit: "audit.read",
    }
)
"""About the realm."""

OWN: frozenset[type[wire.Request]] = frozenset(
    {
        *(wire.Ping, wire.Unsubscribe, wire.Settle, wire.Hold, wire.Bury, wire.DropStages),
        *(wire.ReadExport, wire.EndExport, wire.PutImport, wire.CommitImport, wire.AbortImport),
        *(wire.ReadBackup, wire.EndBackup),
    }
)
"""About what this very session has opened, which was asked for then."""

SEVERAL: frozenset[type[wire.Request]] = frozenset(
    {
        *(wire.CreateChannel, wire.EditChannel, wire.ListChannels, wire.CreateJoin, wire.Redrive),
        wire.BeginImport,
        *(wire.BeginTransaction, wire.CommitTransaction, wire.CommitStagedParts),
        *(accounts.SetPassword, accounts.ListEntries, accounts.Grant, accounts.Revoke),
    }
)
"""What they ask depends on what they say; :meth:`Permits.asked` tells."""


class Permits:
    """Of one connection. What was allowed once is allowed until rights change."""

    def __init__(self, access: Access, directory: Directory, principal: Principal) -> None:
        self._access = access
        self._directory = directory
        self.principal = principal
        self._allowed: set[tuple[type[wire.Request], int]] = set()
        self._version = access.version
        self._openings: dict[int, Opening] = {}
        self._exports: dict[str, Asked] = {}
        self._names: set[str] = set()
        """What it could do something with at some time."""

    def check(self, message: wire.Request) -> None:
        """Raises ``AccessDenied`` naming the missing right, ``NameDoesNotExist``."""
        kind = type(message)
        if self._version != self._access.version:
            self._version = self._access.version
            self._allowed.clear()
        number = getattr(message, "channel", None)
        if (kind, number) in self._allowed:
            return
        for operation, name in self.asked(message):
            self._require(message, operation, name)
        if kind in BY_NUMBER and isinstance(number, int):
            self._allowed.add((kind, number))

    def _require(self, message: wire.Request, operation: str, name: str) -> None:
        try:
            self._access.require(self.principal, operation, name)
        except AccessDenied as error:
            raise self._discreet(message, operation, name, error) from None
        self._names.add(name)

    def _discreet(
        self, message: wire.Request, operation: str, name: str, error: AccessDenied
    ) -> AccessDenied:
        """Numbers can be tried one after the other: they do not tell names that the client could
        not have from a list, and has not been allowed to use before."""
        if not isinstance(message, BY_NUMBERS) or not name or name in self._names:
            return error
        need = OPERATIONS[operation]
        if self._access.visible(self.principal, need.kind, [name]):
            return error
        rights = " or ".join(f"{right!r}" for right in need.rights)
        return AccessDenied(f"{self.principal.name} lacks {rights} on the {need.kind} it asks for")

    def may_hear_of(self, number: int, asked: Collection[int]) -> bool:
        """Whether a remembered answer may name a store: one of those that were ``asked`` for, or
        where none was, one it may publish to."""
        channel = self._directory.channels.get(number)
        if channel is not None and channel.state.definition.kind == "schedule":
            name = channel.state.name.removeprefix(SCHEDULE_PREFIX)
            number = self._directory.find(name) or number
        if asked:
            return number in asked
        try:
            operation, name = self._numbered(number, _PUBLISH)
        except NameDoesNotExist:
            return False
        return self._access.allows(self.principal, operation, name)

    def opened(self, message: Opening) -> None:
        """A subscription is being opened: it lasts as long as it would be allowed."""
        self._openings[message.subscription] = message

    def closed(self, subscription: int) -> None:
        """A subscription has ended."""
        self._openings.pop(subscription, None)

    def refusal(self, subscription: int) -> PenstockError | None:
        """Why a subscription of this connection may not stay; None: it may."""
        message = self._openings.get(subscription)
        if message is None:
            return None
        try:
            self.check(message)
        except PenstockError as error:
            return error
        return None

    async def permitted(self, message: wire.Request, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do what ``message`` asks, if all it asks for is allowed; acts of administration are
        written down, refused ones too."""
        if not isinstance(message, wire.CreateChannel | wire.DeleteChannel):
            return await self._done(message, work)
        async with self._access.naming(destination_name(message.name)):
            return await self._done(message, work)

    async def _done(self, message: wire.Request, work: Callable[[], Awaitable[Any]]) -> Any:
        self._still_moving(message)
        asked = list(self.asked(message))
        operation, name = asked[0] if asked else ("session.open", "")
        try:
            async with self._access.act(self.principal, operation, name, _target(message)):
                for other, about in asked[1:]:
                    self._require(message, other, about)
                self._names.add(name)
                answer = await work()
        except AccessDenied as error:
            raise self._discreet(message, operation, name, error) from None
        return await self._followed(message, answer)

    def _still_moving(self, message: wire.Request) -> None:
        """An export that was begun is read as long as it would be begun; imports and backups
        likewise."""
        match message:
            case wire.ReadExport(_, export) if export in self._exports:
                self._access.require(self.principal, *self._exports[export])
            case wire.PutImport() | wire.CommitImport():
                self._access.require(self.principal, "channel.import")
            case wire.ReadBackup():
                self._access.require(self.principal, "realm.backup")
            case wire.EndExport(_, export):
                self._exports.pop(export, None)
            case _:
                pass

    async def _followed(self, message: wire.Request, answer: Any) -> Any:
        match message:
            case wire.CreateChannel(_, name, definition):
                await self._access.created(self.principal, definition.kind, destination_name(name))
            case wire.CommitImport() if isinstance(answer, ChannelOpened):
                kind = _kind(answer.definition.kind)
                await self._access.created(self.principal, kind, answer.name)
            case wire.BeginExport(_, name, kind) if isinstance(answer, ExportBegun):
                self._exports[answer.export] = _named(kind, "export", name)
            case wire.DeleteChannel(_, name, kind):
                await self._access.deleted(kind, destination_name(name))
            case wire.ListChannels(_, kind):
                return self._access.visible(self.principal, kind, answer)
            case _:
                pass
        return answer

    # --- what a request asks -------------------------------------------------------------

    def asked(self, message: wire.Request) -> Iterator[Asked]:
        """Every operation of a request with its name, the one it is known by first."""
        sort = type(message)
        if (pair := BY_NUMBER.get(sort)) is not None:
            number: int = message.channel  # type: ignore[attr-defined]  # the table's
            yield self._numbered(number, pair)
            if isinstance(message, CHOOSING) and message.selector:
                yield self._numbered(number, _READ)
        elif (suffix := BY_NAME.get(sort)) is not None:
            yield _named(message.kind, suffix, message.name)  # type: ignore[attr-defined]  # likewise
        elif (operation := ON_REALM.get(sort)) is not None:
            yield operation, ""
        elif sort not in OWN:
            yield from self._several(message)

    def _several(self, message: wire.Request) -> Iterator[Asked]:
        match message:
            case wire.CreateChannel(_, _, definition):
                yield f"{_kind(definition.kind)}.create", ""
                yield from self._dead_event_store(definition, "")
            case wire.EditChannel(_, name, definition):
                yield _named(definition.kind, "edit", name)
                yield from self._dead_event_store(definition, name)
            case wire.ListChannels(_, kind):
                yield f"{_kind(kind)}.list", ""
            case wire.BeginTransaction(_, _, numbers):
                yield from (self._numbered(number, _PUBLISH) for number in numbers)
            case wire.CommitTransaction(_, _, parts, leaving):
                yield from (self._numbered(part.channel, _PUBLISH) for part in parts)
                yield from (self._numbered(each.channel, _PURGE) for each in leaving)
            case wire.CommitStagedParts(_, _, _, parts):
                yield from (self._numbered(number, _PUBLISH) for number, _ in parts)
            case _:
                yield from self._two_sided(message)

    def _two_sided(self, message: wire.Request) -> Iterator[Asked]:
        match message:
            case wire.BeginImport(_, _, manifest):
                yield "channel.import", ""
                if (definition := _imported(manifest)) is not None:
                    yield from self._dead_event_store(definition, "")
            case wire.CreateJoin(_, source, destination):
                yield "join.create", ""
                yield self._store(source, _READ)
                yield self._store(destination, _PUBLISH)
            case wire.Redrive(_, source, destination, selector, dry_run):
                yield self._store(source, ("channel.redrive", "queue.redrive"))
                if destination or selector or dry_run:  # all of which tell what is there
                    yield self._store(source, _READ)
                if destination:
                    yield self._store(destination, _PUBLISH)
            case _:
                yield from self._about_access(message)

    def _about_access(self, message: wire.Request) -> Iterator[Asked]:
        match message:
            case accounts.SetPassword(_, name):
                is_own = self._access.is_own_password(self.principal, name)
                yield ("me.password" if is_own else "user.change"), ""
            case accounts.ListEntries(_, kind, name):
                resource = checked_resource(kind, name)
                yield f"{kind}.acl.read", resource
            case accounts.Grant(_, kind, name) | accounts.Revoke(_, kind, name):
                resource = checked_resource(kind, name)
                yield f"{kind}.acl.change", resource
            case _:
                raise AssertionError(f"{type(message).__name__} is in no table of operations")

    def _dead_event_store(self, definition: Definition, name: str) -> Iterator[Asked]:
        """Whose events go there publishes there, in the end; and who reads there reads them."""
        dead = definition.dead_event_store
        if not dead:
            return
        number = self._directory.find(destination_name(name)) if name else None
        if number is not None:
            own = self._directory.channels[number].state.definition
            if own.dead_event_store == destination_name(dead):
                return  # as it was
            yield self._numbered(number, _READ)
        yield self._store(dead, _PUBLISH)

    def _store(self, name: str, pair: tuple[str, str]) -> Asked:
        """What one may not see is taken for a channel, as is what there is not: a refusal does not
        tell which of them it is. Raises ``InvalidName``."""
        wanted = destination_name(name)
        number = self._directory.find(wanted)
        if number is None or not self._access.visible(self.principal, "queue", [wanted]):
            return pair[0], wanted
        return self._numbered(number, pair)

    def _numbered(self, number: int, pair: tuple[str, str]) -> Asked:
        """Raises ``NameDoesNotExist``."""
        channel = self._directory.channels.get(number)
        if channel is None:
            raise NameDoesNotExist(f"there is no channel or queue number {number} any more")
        name, kind = channel.state.name, channel.state.definition.kind
        if kind == "schedule":  # what waits to be published on a store is that store's affair
            return self._store(name.removeprefix(SCHEDULE_PREFIX), pair)
        return pair[kind == "queue"], name


def _named(kind: str, suffix: str, name: str) -> Asked:
    return f"{_kind(kind)}.{suffix}", destination_name(name)


def _kind(kind: str) -> str:
    if kind not in ("channel", "queue"):
        raise InvalidArgument(f"{kind!r} is neither a channel nor a queue")
    return kind


def _imported(manifest: bytes) -> Definition | None:
    """What an export is of; None: the import says what is wrong with it."""
    try:
        return manifest_from(manifest).definition
    except PenstockError:
        return None


def _target(message: wire.Request) -> str:
    """What the audit log says an act was about, where that is not a channel or queue."""
    match message:
        case wire.CreateJoin(_, source, destination) | wire.DeleteJoin(_, source, destination):
            return f"{source} -> {destination}"
        case accounts.Grant(_, kind, name, subject, rights):
            return f"{kind} {name}: +{','.join(rights)} {subject}"
        case accounts.Revoke(_, kind, name, subject, rights):
            return f"{kind} {name}: -{','.join(rights) or 'all'} {subject}"
        case wire.CreateChannel(_, name) | wire.BeginImport(_, name):
            return name
        case accounts.CreateUser(_, name) | accounts.DeleteUser(_, name):
            return name
        case accounts.SetPassword(_, name) | accounts.CreateGroup(_, name):
            return name
        case accounts.ChangeGroup(_, name) | accounts.DeleteGroup(_, name):
            return name
        case _:
            return ""
