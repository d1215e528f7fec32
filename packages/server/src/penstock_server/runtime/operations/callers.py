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
"""The session name of all calls over HTTP."""


class Caller:
    """A principal in one session, with its rights and its open subscriptions."""

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
        """Create the caller of a session.

        ``version`` is the version of the server software. ``subscriptions`` maps the client's
        numbers of its subscriptions to the realm's ids; the id is 0 while a subscription is being
        opened. ``is_secure`` means that the connection is encrypted or does not leave the machine.
        """
        self.realm = realm
        self.is_node = is_node
        """Whether a node of the cluster acts for the principal (SEM N9)."""
        self.version = version
        self.is_secure = is_secure
        self.principal = principal
        self.session = session
        self.permits = (
            None
            if realm.access.checks_nothing
            else Permits(realm.access, realm.directory, principal)
        )
        """The rights of the session; None if the realm checks no rights."""
        self.publisher = principal.name
        """The publisher, ``user@host``, that published events get (SEM E3)."""
        self.owner = "" if self.permits is None or principal.trusted else principal.user
        """Owner of the names that the caller chooses (of producers, stages, transactions); empty if
        the realm does not authenticate users."""
        self.subscriptions = {} if subscriptions is None else subscriptions
        self.password_nonce = b""
        """Nonce of the password change in progress; empty without one."""

    def check(self, request: Request[Any]) -> None:
        """Raise ``AccessDenied``, which names the missing right, or ``NameDoesNotExist`` if the
        caller may not make a request."""
        if self.permits is not None:
            self.permits.check(request)
        else:
            self.check_internal(request)

    def check_internal(self, request: Request[Any]) -> None:
        """Raise ``NameDoesNotExist`` for a request on an internal store that clients may not make,
        whatever their rights (SEM A6)."""
        if self.realm.directory.internal.machines:
            check_internal(self.realm.directory, request)

    def check_consumer(self, number: int) -> None:
        """Raise ``DurableInUse`` for a temporary destination that another session has created:
        only that session may consume from it (SEM R2)."""
        if number in self.realm.directory.temporary:
            self.realm.reply_queues.owners.check(number, self.session_for)

    def session_for(self, name: str) -> str:
        """Return the session that owns the caller's temporary destination ``name``. Calls over HTTP
        have no lasting session, so the name of the destination serves as its session."""
        return name if self.session == HTTP_SESSION else self.session

    def allows(self, operation: str, name: str = "") -> bool:
        """Whether the caller may perform an operation."""
        return self.realm.access.allows(self.principal, operation, name)

    def sees_queue(self, name: str) -> bool:
        """Whether ``name`` is a queue that the caller may see. Callers treat all other names as
        channels, so that a refusal does not reveal a hidden queue."""
        store = self.realm.view.named(name) if name else None
        if store is None or store.kind != "queue":
            return False
        return bool(self.realm.access.visible(self.principal, "queue", [name]))

    def owned(self, name: str) -> str:
        """Return a name that the caller has chosen (of a producer, stage or transaction), with the
        owner added, so that equal names of other users differ."""
        return owned(name, self.owner)

    def seat(self, number: int) -> int:
        """Return the realm's number of the client's subscription ``number``; 0 if it does not
        exist."""
        return self.subscriptions.get(number, 0)

    def leave(self) -> None:
        """End the exports, imports and backups of the session when it ends."""
        self.realm.exports.leave(self.session)
        self.realm.imports.leave(self.session)
        self.realm.backups.leave(self.session)
