"""Permissions of one session: each request as operations on names (SEM A).

``penstock_core.api.operations`` says what each request asks for; here the channels and queues it
means are found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock_core.access.rights import Principal
from penstock_core.api.channels import (
    ChannelOpened,
    CreateChannel,
    DeleteChannel,
    EditChannel,
    ListChannels,
)
from penstock_core.api.operations import (
    COLUMNS,
    OPERATIONS,
    PUBLISH,
    READ,
    REQUESTS,
    Ask,
    ByName,
    DeadEventStore,
    NamedTarget,
    Numbered,
    OfKind,
    OfResource,
    OnRealm,
    Pair,
    PasswordTarget,
    TopicsGiven,
)
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, BrowseDurable, Subscribe
from penstock_core.api.transfers import (
    BeginExport,
    BeginImport,
    CommitImport,
    EndExport,
    ExportBegun,
    PutImport,
    ReadBackup,
    ReadExport,
)
from penstock_core.columns.files.exports import manifest_from
from penstock_core.realm.directory import SCHEDULE_PREFIX, Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AccessDenied,
    InvalidArgument,
    NameDoesNotExist,
    PenstockError,
)
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.runtime.access.access import AccessControl
from penstock_server.runtime.access.accounts import checked_resource

Asked = tuple[str, str]
"""An operation, and the name of its target."""
Opening = Subscribe | Attach | BrowseDurable

_NAMES_MIN: Final = 1_000
"""Names of stores that a session may have used until those of deleted stores are forgotten."""


class Permits:
    """The permissions of one session. What was allowed once is allowed until rights change."""

    def __init__(self, access: AccessControl, directory: Directory, principal: Principal) -> None:
        self._access = access
        self._directory = directory
        self.principal = principal
        self._allowed: set[tuple[type[Request[Any]], int]] = set()
        self._version = access.version
        self._openings: dict[int, Opening] = {}
        self._exports: dict[str, Asked] = {}
        self._names: set[str] = set()
        """Names on which it has had some right."""
        self._names_max = _NAMES_MIN

    def check(self, request: Request[Any]) -> None:
        """Raises ``AccessDenied`` naming the missing right, ``NameDoesNotExist``."""
        kind = type(request)
        self._access.admit(request)
        if self._version != self._access.version:
            self._version = self._access.version
            self._allowed.clear()
        number = getattr(request, "channel", None)
        if (kind, number) in self._allowed:
            return
        for operation, name in self.asked(request):
            self._require(request, operation, name)
        if isinstance(number, int) and REQUESTS[kind].is_about_its_channel:
            self._allowed.add((kind, number))

    def _require(self, request: Request[Any], operation: str, name: str) -> None:
        by_number = self._is_by_number(request, name)
        try:
            self._access.require(self.principal, operation, name, by_number=by_number)
        except AccessDenied as error:
            raise self._discreet(request, operation, name, error=error) from None
        self._note(name)

    def _is_by_number(self, request: Request[Any], name: str) -> bool:
        """Whether the client has not shown yet that it knows the name of a store."""
        return REQUESTS[type(request)].is_numbered and name not in self._names

    def _note(self, name: str) -> None:
        """The client has used a store of this name. A session that replies to many others uses the
        names of as many temporary destinations."""
        self._names.add(name)
        if len(self._names) > self._names_max:
            self._names = {each for each in self._names if self._directory.find(each) is not None}
            self._names_max = max(_NAMES_MIN, 2 * len(self._names))

    def _discreet(
        self, request: Request[Any], operation: str, name: str, error: AccessDenied
    ) -> PenstockError:
        """Numbers can be tried one after the other: they do not tell names that the client could
        not have from a list, and has not been allowed to use before. A temporary destination is
        there only for those who know its name."""
        if not REQUESTS[type(request)].is_numbered or not name or name in self._names:
            return error
        if is_temporary(name) and (number := self._directory.find(name)) is not None:
            return _no_number(number)
        need = OPERATIONS[operation]
        if self._access.visible(self.principal, need.kind, [name]):
            return error
        rights = " or ".join(f"{right!r}" for right in need.rights)
        return AccessDenied(
            f"{self.principal.name} lacks {rights} on the {need.kind} of this request"
        )

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
            operation, name = self._numbered(number, PUBLISH)
        except NameDoesNotExist:
            return False
        by_number = name not in self._names
        return self._access.allows(self.principal, operation, name, by_number=by_number)

    def opened(self, request: Opening) -> None:
        """A subscription is being opened: it lasts as long as it would be allowed."""
        self._openings[request.subscription] = request

    def closed(self, subscription: int) -> None:
        """A subscription has ended."""
        self._openings.pop(subscription, None)

    def refusal(self, subscription: int) -> PenstockError | None:
        """Why a subscription of this session may not stay; None: it may."""
        request = self._openings.get(subscription)
        if request is None:
            return None
        try:
            self.check(request)
        except PenstockError as error:
            return error
        return None

    def check_rest(self, request: Request[Any]) -> None:
        """As :meth:`check`, where the operation it is known by is allowed already."""
        (_, name), *rest = self.asked(request)
        self._note(name)
        for operation, about in rest:
            self._require(request, operation, about)

    async def permitted(
        self,
        request: Request[Any],
        work: Callable[[], Awaitable[Any]],
        target: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do what ``request`` asks, if all it asks for is allowed; acts of administration are
        written down, refused ones too, with ``target`` and ``detail``."""
        if not isinstance(request, CreateChannel | DeleteChannel):
            return await self._done(request, work, target, detail=detail or {})
        async with self._access.naming(destination_name(request.name)):
            return await self._done(request, work, target, detail=detail or {})

    async def _done(
        self,
        request: Request[Any],
        work: Callable[[], Awaitable[Any]],
        target: str | None,
        detail: Mapping[str, Any],
    ) -> Any:
        self._still_moving(request)
        asked = list(self.asked(request))
        operation, name = asked[0] if asked else ("session.open", "")
        about = REQUESTS[type(request)].about(request) if target is None else target
        by_number = self._is_by_number(request, name)
        try:
            async with self._access.act(
                self.principal, operation, name, target=about, by_number=by_number, **detail
            ):
                for other, other_name in asked[1:]:
                    self._require(request, other, other_name)
                self._note(name)
                answer = await work()
        except AccessDenied as error:
            raise self._discreet(request, operation, name, error=error) from None
        return await self._followed(request, answer)

    def _still_moving(self, request: Request[Any]) -> None:
        """An export that was begun is read as long as it would be begun; imports and backups
        likewise."""
        match request:
            case ReadExport(export) if export in self._exports:
                self._access.require(self.principal, *self._exports[export])
            case PutImport() | CommitImport():
                self._access.require(self.principal, "channel.import")
            case ReadBackup():
                self._access.require(self.principal, "realm.backup")
            case EndExport(export):
                self._exports.pop(export, None)
            case _:
                pass

    async def _followed(self, request: Request[Any], answer: Any) -> Any:
        match request:
            case CreateChannel(name, definition):
                await self._access.created(self.principal, definition.kind, destination_name(name))
            case CommitImport() if isinstance(answer, ChannelOpened):
                kind = _kind(answer.definition.kind)
                await self._access.created(self.principal, kind, answer.name)
            case BeginExport(name, kind) if isinstance(answer, ExportBegun):
                self._exports[answer.export] = _named(kind, "export", name)
            case DeleteChannel(name, kind):
                await self._access.deleted(kind, destination_name(name))
            case ListChannels(kind):
                return self._access.visible(self.principal, kind, answer)
            case _:
                pass
        return answer

    # --- what a request asks -------------------------------------------------------------

    def asked(self, request: Request[Any]) -> Iterator[Asked]:
        """Every operation of a request with its name, the one it is known by first."""
        for ask in REQUESTS[type(request)].asks:
            yield from self._found(ask, request)

    def _found(self, ask: Ask, request: Any) -> Iterator[Asked]:
        match ask:
            case Numbered(pair, numbers):
                yield from self._all_numbered(numbers(request), pair)
            case OnRealm(operation):
                yield operation, ""
            case OfKind(kind, verb):
                yield f"{_kind(kind(request))}.{verb}", ""
            case NamedTarget(kind, verb):
                yield _named(kind(request), verb, request.name)
            case ByName(pair, name):
                if (given := name(request)) is not None and not self._is_elsewhere(ask, given):
                    yield self._store(given, pair)
            case DeadEventStore() | TopicsGiven():
                yield from self._of_definition(ask, _definition(request), ask.name(request))
            case PasswordTarget():
                is_own = self._access.is_own_password(self.principal, request.name)
                yield ("me.password" if is_own else "user.change"), ""
            case OfResource(verb):
                resource = checked_resource(request.kind, request.name)
                yield f"{request.kind}.{verb}", resource

    def _is_elsewhere(self, ask: ByName, name: str) -> bool:
        """Whether another realm asks for the right to the store, for it is not here (SEM N9)."""
        directory = self._directory
        is_local = bool(directory.rules.local_to)
        return ask.may_be_elsewhere and is_local and directory.find(destination_name(name)) is None

    def _of_definition(
        self, ask: DeadEventStore | TopicsGiven, definition: Definition | None, name: str
    ) -> Iterator[Asked]:
        if definition is None:
            return
        if isinstance(ask, TopicsGiven):
            yield from self._topics_given(definition, name, is_new=ask.is_new)
        elif definition.dead_event_store:
            yield from self._dead_event_store(definition.dead_event_store, name)

    def _dead_event_store(self, dead: str, name: str) -> Iterator[Asked]:
        number = self._directory.find(destination_name(name)) if name else None
        if number is not None:
            own = self._directory.channels[number].state.definition
            if own.dead_event_store == destination_name(dead):
                return  # it is unchanged
            yield self._numbered(number, READ)
        yield self._store(dead, PUBLISH)

    def _topics_given(self, definition: Definition, name: str, *, is_new: bool) -> Iterator[Asked]:
        wanted, every = destination_name(name), self._directory.internal.mqtt_channel
        number = None if is_new else self._directory.find(wanted)
        own = () if number is None else self._directory.channels[number].state.definition.topics
        if definition.topics != own or (is_new and wanted == every):
            yield "channel.edit", every

    def _store(self, name: str, pair: Pair) -> Asked:
        """Take a store that one may not see for a channel, as one that does not exist: a refusal
        does not tell which of the two it is. Raises ``InvalidName``."""
        wanted = destination_name(name)
        number = self._directory.find(wanted)
        if number is None or not self._access.visible(self.principal, "queue", [wanted]):
            return pair[0], wanted
        return self._numbered(number, pair)

    def _all_numbered(self, numbers: Iterable[int], pair: Pair) -> Iterator[Asked]:
        for number in numbers:
            if number in self._directory.internal.machines:
                yield from asked_of_internal(self._directory, number, pair)
            else:
                yield self._numbered(number, pair)

    def _numbered(self, number: int, pair: Pair) -> Asked:
        """Raises ``NameDoesNotExist``."""
        channel = self._directory.channels.get(number)
        if channel is None:
            raise _no_number(number)
        name, kind = channel.state.name, channel.state.definition.kind
        if kind == "outbox":
            raise NameDoesNotExist(f"channel or queue number {number} is the realm's own")
        if kind == "schedule":  # the schedule of a store belongs to that store
            return self._store(name.removeprefix(SCHEDULE_PREFIX), pair)
        return pair[kind == "queue"], name


def _no_number(number: int) -> NameDoesNotExist:
    return NameDoesNotExist(f"channel or queue number {number} no longer exists")


def check_internal(directory: Directory, request: Request[Any]) -> None:
    """Raise ``NameDoesNotExist`` for what nobody may do with an internal store, whatever rights
    there are (SEM A6)."""
    for ask in REQUESTS[type(request)].asks:
        if isinstance(ask, Numbered):
            for number in ask.numbers(request):
                if number in directory.internal.machines:
                    asked_of_internal(directory, number, ask.pair)


def asked_of_internal(directory: Directory, number: int, pair: Pair) -> list[Asked]:
    """The rights to read retained messages: those to read all channels that they may have been
    published to. Raises ``NameDoesNotExist`` for everything else."""
    if pair not in (READ, COLUMNS) or number != directory.internal.retained_id:
        raise NameDoesNotExist(f"channel number {number} is an internal store of the realm")
    return rights_through(directory, pair)


def rights_through(directory: Directory, pair: Pair) -> list[Asked]:
    """What is asked of those who read or remove retained messages: an operation on each channel
    that they may have been published to."""
    names = [directory.channels[each].state.name for each in directory.topics.since]
    return [(pair[0], name) for name in (directory.internal.mqtt_channel, *names)]


def _named(kind: str, verb: str, name: str) -> Asked:
    return f"{_kind(kind)}.{verb}", destination_name(name)


def _kind(kind: str) -> str:
    if kind not in ("channel", "queue"):
        raise InvalidArgument(f"{kind!r} is neither a channel nor a queue")
    return kind


def _definition(request: CreateChannel | EditChannel | BeginImport) -> Definition | None:
    """The definition that is created or edited; None: the import will report what is wrong with
    it."""
    if not isinstance(request, BeginImport):
        return request.definition
    try:
        return manifest_from(request.manifest).definition
    except PenstockError:
        return None
