"""Permissions of one session. A request needs rights to one or more operations on stores (SEM A).

``penstock_core.api.operations`` declares the operations of each request; this module resolves the
channels and queues that they refer to."""

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
from penstock_core.api.durables import DescribeDelivery
from penstock_core.api.operations import (
    COLUMNS,
    OPERATIONS,
    PUBLISH,
    READ,
    REQUESTS,
    Ask,
    ByName,
    DeadEventsRead,
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

NeededOperation = tuple[str, str]
"""An operation that a request needs, and the name of its target."""
Opening = Subscribe | Attach | BrowseDurable

NAMES_MIN: Final = 1_000
"""Number of store names that a session remembers before it first forgets those of deleted
stores."""


class Permits:
    """The permissions of one session. An allowed request stays allowed until rights change."""

    def __init__(self, access: AccessControl, directory: Directory, principal: Principal) -> None:
        self._access = access
        self._directory = directory
        self.principal = principal
        self._allowed: set[tuple[type[Request[Any]], int]] = set()
        self._version = access.version
        self._openings: dict[int, Opening] = {}
        """Requests that opened the session's subscriptions, by subscription id."""
        self._exports: dict[str, NeededOperation] = {}
        """The operation that the begin of an export needed, by the id of the export."""
        self.names: set[str] = set()
        """Names of stores that the session was allowed to use."""
        self.names_min = NAMES_MIN
        """Number of names to remember before the names of deleted stores are first forgotten."""
        self._names_kept = 0

    def check(self, request: Request[Any]) -> None:
        """Raise ``AccessDenied``, which names the missing right, if the session may not make a
        request, and ``NameDoesNotExist`` if the store of the request does not exist."""
        kind = type(request)
        self._access.admit(request)
        if self._version != self._access.version:
            self._version = self._access.version
            self._allowed.clear()
        number = getattr(request, "channel", None)
        # The hot path of publishes and settlements: one look-up until rights change.
        if (kind, number) in self._allowed:
            return
        for operation, name in self.needed(request):
            self._require(request, operation, name)
        # The result is remembered only for requests whose rights depend on the channel alone,
        # because other fields may name further stores.
        if isinstance(number, int) and REQUESTS[kind].is_about_its_channel:
            self._allowed.add((kind, number))

    def _require(self, request: Request[Any], operation: str, name: str) -> None:
        """Check the right to an operation, and remember the store's name if it is allowed."""
        by_number = self._is_by_number(request, name)
        try:
            self._access.require(self.principal, operation, name, by_number=by_number)
        except AccessDenied as error:
            # Without the first error as its context, whose text may have a name that the client
            # must not learn.
            raise self._without_hidden_names(request, operation, name, error=error) from None
        self._note(name)

    def _is_by_number(self, request: Request[Any], name: str) -> bool:
        """Whether the request has a number and the client has not yet used the store's name."""
        return REQUESTS[type(request)].is_numbered and name not in self.names

    def _note(self, name: str) -> None:
        """Remember that the client has used a store of this name.

        A session that replies to many clients uses as many temporary destinations, so names of
        deleted stores are dropped. The names are searched again only after their number has
        doubled, so that the cost of a search is spread over as many new names.
        """
        self.names.add(name)
        if len(self.names) > max(self.names_min, 2 * self._names_kept):
            self.names = {name for name in self.names if self._directory.find(name) is not None}
            self._names_kept = len(self.names)

    def _without_hidden_names(
        self, request: Request[Any], operation: str, name: str, error: AccessDenied
    ) -> PenstockError:
        """Return the error without names that the client may not learn.

        A client can try store ids one after the other. So the refusal of an id has the store's name
        only if the client may list the store or was allowed to use it before. For clients that do
        not know its name, a temporary destination does not exist.
        """
        if not REQUESTS[type(request)].is_numbered or not name or name in self.names:
            return error
        if is_temporary(name) and (number := self._directory.find(name)) is not None:
            return _no_number(number)
        # A client that may read the delivery states of a channel may also describe the channel,
        # whose description names its dead event store.
        if isinstance(request, DescribeDelivery):
            channel = self._directory.channels.get(request.channel)
            if channel is not None and channel.state.definition.dead_event_store == name:
                return error
        need = OPERATIONS[operation]
        if self._access.visible(self.principal, need.kind, [name]):
            return error
        rights = " or ".join(f"{right!r}" for right in need.rights)
        return AccessDenied(
            f"{self.principal.name} lacks {rights} on the {need.kind} of this request"
        )

    def may_hear_of(self, number: int, requested: Collection[int]) -> bool:
        """Whether a remembered answer may include the store ``number``: it must be in
        ``requested``, or, if ``requested`` is empty, the session must have the right to publish to
        it."""
        channel = self._directory.channels.get(number)
        if channel is not None and channel.state.definition.kind == "schedule":
            name = channel.state.name.removeprefix(SCHEDULE_PREFIX)
            number = self._directory.find(name) or number
        if requested:
            return number in requested
        try:
            operation, name = self._numbered(number, PUBLISH)
        except NameDoesNotExist:
            return False
        by_number = name not in self.names
        return self._access.allows(self.principal, operation, name, by_number=by_number)

    def remember(self, request: Opening) -> None:
        """Remember the request of a subscription, to check it again when rights change."""
        self._openings[request.subscription] = request

    def forget(self, subscription: int) -> None:
        """Forget the request of an ended subscription."""
        self._openings.pop(subscription, None)

    def refusal(self, subscription: int) -> PenstockError | None:
        """Return the error that ends a subscription; None if the session still has the rights that
        it needs."""
        request = self._openings.get(subscription)
        if request is None:
            return None
        try:
            self.check(request)
        except PenstockError as error:
            return error
        return None

    def check_rest(self, request: Request[Any]) -> None:
        """Check a request as :meth:`check` does, but without its first operation, which the caller
        has checked already."""
        (_, first_name), *others = self.needed(request)
        self._note(first_name)
        for operation, name in others:
            self._require(request, operation, name)

    async def permitted(
        self,
        request: Request[Any],
        work: Callable[[], Awaitable[Any]],
        target: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run ``work`` if all operations of ``request`` are allowed, and return its answer. Acts of
        administration, also refused ones, are audited with ``target`` and ``detail``."""
        if not isinstance(request, CreateChannel | DeleteChannel):
            return await self._perform(request, work, target, detail=detail or {})
        async with self._access.naming(destination_name(request.name)):
            return await self._perform(request, work, target, detail=detail or {})

    async def _perform(
        self,
        request: Request[Any],
        work: Callable[[], Awaitable[Any]],
        target: str | None,
        detail: Mapping[str, Any],
    ) -> Any:
        """Check all operations that a request needs, run ``work``, write the audit record, and
        return the answer."""
        self._check_transfer(request)
        needed = list(self.needed(request))
        operation, name = needed[0] if needed else ("session.open", "")
        about = REQUESTS[type(request)].about(request) if target is None else target
        by_number = self._is_by_number(request, name)
        try:
            async with self._access.act(
                self.principal, operation, name, target=about, by_number=by_number, **detail
            ):
                for further_operation, further_name in needed[1:]:
                    self._require(request, further_operation, further_name)
                self._note(name)
                answer = await work()
        except AccessDenied as error:
            raise self._without_hidden_names(request, operation, name, error=error) from None
        return await self._update_rights(request, answer)

    def _check_transfer(self, request: Request[Any]) -> None:
        """Check the right to begin an export, import or backup again with each later request of it,
        so that it fails once the session has lost this right."""
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

    async def _update_rights(self, request: Request[Any], answer: Any) -> Any:
        """Add or remove the rights that follow from a request that was done, and return its
        answer without names the principal may not see."""
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

    # --- operations of a request ---------------------------------------------------------

    def needed(self, request: Request[Any]) -> Iterator[NeededOperation]:
        """Yield every operation that a request needs; audit records name the first one."""
        for ask in REQUESTS[type(request)].asks:
            yield from self._resolve(ask, request)

    def _resolve(self, ask: Ask, request: Any) -> Iterator[NeededOperation]:
        """Yield the operations that ``ask``, one declaration of the request's type, means for this
        request."""
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
                if (store := name(request)) is not None and not self._is_elsewhere(ask, store):
                    yield self._store(store, pair)
            case _:
                yield from self._resolve_rare(ask, request)

    def _resolve_rare(
        self,
        ask: DeadEventsRead | DeadEventStore | TopicsGiven | PasswordTarget | OfResource,
        request: Any,
    ) -> Iterator[NeededOperation]:
        """Yield the operations for the declarations that few requests have."""
        match ask:
            case DeadEventsRead(is_read):
                dead = self._directory.dead_event_store_of(request.channel)
                if dead is not None and is_read(request):
                    yield self._numbered(dead, READ)
            case DeadEventStore() | TopicsGiven():
                yield from self._of_definition(ask, _definition(request), ask.name(request))
            case PasswordTarget():
                is_own = self._access.is_own_password(self.principal, request.name)
                yield ("me.password" if is_own else "user.change"), ""
            case OfResource(verb):
                resource = checked_resource(request.kind, request.name)
                yield f"{request.kind}.{verb}", resource

    def _is_elsewhere(self, ask: ByName, name: str) -> bool:
        """Whether the store is in another realm, which checks the right to it (SEM N9)."""
        directory = self._directory
        is_local = bool(directory.rules.local_to)
        return ask.may_be_elsewhere and is_local and directory.find(destination_name(name)) is None

    def _of_definition(
        self, ask: DeadEventStore | TopicsGiven, definition: Definition | None, name: str
    ) -> Iterator[NeededOperation]:
        """Yield the operations that a definition needs because it names a dead event store or MQTT
        topics."""
        if definition is None:
            return
        if isinstance(ask, TopicsGiven):
            yield from self._topics_given(definition, name, is_new=ask.is_new)
        elif definition.dead_event_store:
            yield from self._dead_event_store(definition.dead_event_store, name)

    def _dead_event_store(self, dead: str, name: str) -> Iterator[NeededOperation]:
        """Yield the operations needed to name ``dead`` as the dead event store of the store
        ``name``."""
        number = self._directory.find(destination_name(name)) if name else None
        if number is not None:
            present = self._directory.channels[number].state.definition
            if present.dead_event_store == destination_name(dead):
                return  # an edit that keeps the dead event store needs no right to that store
            yield self._numbered(number, READ)
        yield self._store(dead, PUBLISH)

    def _topics_given(
        self, definition: Definition, name: str, *, is_new: bool
    ) -> Iterator[NeededOperation]:
        """Yield the operation needed to assign topics to a store, if the definition changes its
        topics."""
        # Topics given to a store are removed from the MQTT channel, so this also edits that
        # channel.
        store_name, mqtt_channel = destination_name(name), self._directory.internal.mqtt_channel
        number = None if is_new else self._directory.find(store_name)
        present = () if number is None else self._directory.channels[number].state.definition.topics
        if definition.topics != present or (is_new and store_name == mqtt_channel):
            yield "channel.edit", mqtt_channel

    def _store(self, name: str, pair: Pair) -> NeededOperation:
        """Return the operation that a request needs on a store: the first of ``pair`` for a
        channel, the second for a queue.

        A store that does not exist or is not visible counts as a channel, so that a refusal does
        not reveal whether it exists. Raises ``InvalidName``.
        """
        store_name = destination_name(name)
        number = self._directory.find(store_name)
        if number is None or not self._access.visible(self.principal, "queue", [store_name]):
            return pair[0], store_name
        return self._numbered(number, pair)

    def _all_numbered(self, numbers: Iterable[int], pair: Pair) -> Iterator[NeededOperation]:
        """Yield the operations needed on the stores with these numbers, internal ones included."""
        for number in numbers:
            if number in self._directory.internal.machines:
                yield from operations_on_internal(self._directory, number, pair)
            else:
                yield self._numbered(number, pair)

    def _numbered(self, number: int, pair: Pair) -> NeededOperation:
        """Return the operation of a pair on the store of a number. Raises ``NameDoesNotExist``."""
        channel = self._directory.channels.get(number)
        if channel is None:
            raise _no_number(number)
        name, kind = channel.state.name, channel.state.definition.kind
        if kind == "outbox":
            raise NameDoesNotExist(
                f"channel or queue number {number} is an internal store of the realm"
            )
        if kind == "schedule":  # the schedule of a store belongs to that store
            return self._store(name.removeprefix(SCHEDULE_PREFIX), pair)
        return pair[kind == "queue"], name


def _no_number(number: int) -> NameDoesNotExist:
    return NameDoesNotExist(f"channel or queue number {number} no longer exists")


def check_internal(directory: Directory, request: Request[Any]) -> None:
    """Raise ``NameDoesNotExist`` for a request on an internal store that clients may not make,
    whatever their rights (SEM A6)."""
    for ask in REQUESTS[type(request)].asks:
        if isinstance(ask, Numbered):
            for number in ask.numbers(request):
                if number in directory.internal.machines:
                    operations_on_internal(directory, number, ask.pair)


def operations_on_internal(directory: Directory, number: int, pair: Pair) -> list[NeededOperation]:
    """Return the operations needed to read retained messages: to read every channel that they may
    have been published to. Raises ``NameDoesNotExist`` for all other internal stores and
    operations."""
    if pair not in (READ, COLUMNS) or number != directory.internal.retained_id:
        raise NameDoesNotExist(f"channel number {number} is an internal store of the realm")
    return rights_through(directory, pair)


def rights_through(directory: Directory, pair: Pair) -> list[NeededOperation]:
    """Return the operations needed to read or remove retained messages: one on each channel that
    they may have been published to."""
    names = [directory.channels[number].state.name for number in directory.topics.since]
    return [(pair[0], name) for name in (directory.internal.mqtt_channel, *names)]


def _named(kind: str, verb: str, name: str) -> NeededOperation:
    """Return the operation ``verb`` on a channel or queue that is given by kind and name."""
    return f"{_kind(kind)}.{verb}", destination_name(name)


def _kind(kind: str) -> str:
    """Return ``kind`` if it is a kind of store. Raises ``InvalidArgument``."""
    if kind not in ("channel", "queue"):
        raise InvalidArgument(f"{kind!r} is not a kind of store; use 'channel' or 'queue'")
    return kind


def _definition(request: CreateChannel | EditChannel | BeginImport) -> Definition | None:
    """Return the definition that a request creates or edits; None for an import with an invalid
    manifest, which the import itself will report."""
    if not isinstance(request, BeginImport):
        return request.definition
    try:
        return manifest_from(request.manifest).definition
    except PenstockError:
        return None
