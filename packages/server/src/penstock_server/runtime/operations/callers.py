"""The caller of an operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock_core.access.name_owners import owned
from penstock_core.access.rights import Principal
from penstock_core.api.requests import Request
from penstock_server.runtime.access.permits import Permits, check_internal

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm


HTTP_SESSION: Final = "http"
"""The session of each call over HTTP: what readers of a queue hear of one that pops."""


class Caller:
    """A principal in one session, with what it has open."""

    def __init__(
        self,
        realm: RunningRealm,
        principal: Principal,
        session: str = "",
        version: str = "",
        subscriptions: dict[int, int] | None = None,
        *,
        is_secure: bool = False,
        is_node: bool = False,
    ) -> None:
        """``version`` is that of the server software. ``subscriptions`` has the realm's number of
        each subscription by the client's own; 0 while it is being opened. With ``is_secure`` nobody
        on the network can read what the caller sends."""
        self.realm = realm
        self.is_node = is_node
        """Whether it is a node of the cluster that speaks for the principal (SEM N9)."""
        self.version = version
        self.is_secure = is_secure
        self.principal = principal
        self.session = session
        self.permits = (
            None
            if realm.access.checks_nothing
            else Permits(realm.access, realm.directory, principal)
        )
        """What it may do; None where no rights are checked."""
        self.publisher = principal.name
        """``user@host``: stamped on what it publishes (SEM E3)."""
        self.owner = "" if self.permits is None or principal.trusted else principal.user
        """Whose the names are that it chooses; empty where the realm does not know its users."""
        self.subscriptions = {} if subscriptions is None else subscriptions
        self.password_nonce = b""
        """Nonce of a password change that has begun; empty: none has."""

    def check(self, request: Request[Any]) -> None:
        """Raises ``AccessDenied`` naming the missing right, ``NameDoesNotExist``."""
        if self.permits is not None:
            self.permits.check(request)
        else:
            self.check_internal(request)

    def check_internal(self, request: Request[Any]) -> None:
        """Raise ``NameDoesNotExist`` for what nobody may do with an internal store."""
        if self.realm.directory.internal.machines:
            check_internal(self.realm.directory, request)

    def check_consumer(self, number: int) -> None:
        """Raise ``DurableInUse`` where it may not consume from a temporary destination, for another
        session has made it (SEM R2)."""
        if number in self.realm.directory.temporary:
            self.realm.reply_queues.owners.check(number, self.session_for)

    def session_for(self, name: str) -> str:
        """The session that a temporary destination of this name is made in. Calls over HTTP have
        one for each destination."""
        return name if self.session == HTTP_SESSION else self.session

    def allows(self, operation: str, name: str = "") -> bool:
        """Whether it may, without a word about what it may not."""
        return self.realm.access.allows(self.principal, operation, name)

    def sees_queue(self, name: str) -> bool:
        """Whether ``name`` is one of a queue. One that it may not see is taken for a channel, as
        is what there is not: a refusal does not tell which of them it is."""
        store = self.realm.view.named(name) if name else None
        if store is None or store.kind != "queue":
            return False
        return bool(self.realm.access.visible(self.principal, "queue", [name]))

    def owned(self, name: str) -> str:
        """A name that it has chosen, apart from those that others choose."""
        return owned(name, self.owner)

    def seat(self, number: int) -> int:
        """What the realm calls one of its subscriptions; 0: it has none of this number."""
        return self.subscriptions.get(number, 0)

    def leave(self) -> None:
        """The session has ended, and the exports, imports and backups with it that it had begun."""
        self.realm.exports.leave(self.session)
        self.realm.imports.leave(self.session)
        self.realm.backups.leave(self.session)
