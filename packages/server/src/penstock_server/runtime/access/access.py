"""Authentication and authorization of the clients of all front ends (SEM A)."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.access.acl import Entry
from penstock_core.access.lockout import Lockout, LockoutRules, network_of
from penstock_core.access.rights import (
    ANONYMOUS,
    NAME_LENGTH_MAX,
    PROOF_PREFIXES,
    RIGHTS,
    Principal,
    checked_name,
    parse_subject,
)
from penstock_core.api.access import Me, Verifier
from penstock_core.api.operations import OPERATIONS
from penstock_core.api.requests import Request
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    IllegalState,
    InsecureConnection,
    InvalidArgument,
    PenstockError,
    SignInLocked,
)
from penstock_core.vocabulary.ports import Clock, Offload, inline
from penstock_core.wire.addresses import is_loopback
from penstock_core.wire.scram import NONCE_BYTES, ScramServer
from penstock_server.runtime.access.accounts import FIRST_USER, Accounts, new_password
from penstock_server.runtime.access.audit import Audit
from penstock_server.runtime.access.audit_details import DefinitionOf, changes, state_of
from penstock_server.runtime.access.ldap_sign_in import Ldap, directory_name
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.passwords import Passwords
from penstock_server.runtime.access.tokens import TokenRules, Tokens

Mode = Literal["off", "optional", "mandatory"]

_PUBLISH = ("channel.publish", "publish")
"""Operation and right to publish on a channel."""
_SEES_ALL: Final = ("channels", "admin", "monitor")
"""A principal with one of these rights on the realm sees every channel and queue."""
TOKEN_S: Final = 3_600
"""Lifetime of a token issued for a password, in seconds."""
TOKENS_OF_USER_MAX: Final = 100
"""Largest number of issued tokens of one user."""

_WRONG: Final = "the user is not known here, or the password is wrong"
# One text for every cause, so that a guesser does not learn which users exist.

_log = logger("penstock.access")


class AccessRules(Struct, frozen=True):
    """The settings of access."""

    mode: Mode = "off"
    failure_delay_s: float = 1.0
    """Delay in seconds of the answer to a failed sign-in."""
    lockout: LockoutRules = LockoutRules()
    cleartext_passwords: bool = False
    """Whether passwords and tokens are accepted over connections without TLS."""
    apart: frozenset[str] = frozenset(PROOF_PREFIXES)
    """Kinds of proof (token, certificate, ldap) whose users get a prefix, so that they differ from
    users of the same name who sign in with a password of the realm."""


class AccessControl:
    """Signs clients in, checks their rights and audits their acts; it is ``realm.access``."""

    def __init__(
        self,
        accounts: Accounts,
        tokens: Tokens,
        audit: Audit,
        logins: Logins,
        offload: Offload,
        rules: AccessRules,
        clock: Clock,
        ldap: Ldap | None = None,
    ) -> None:
        """``ldap`` is a directory with further users; without it, passwords are those of
        ``accounts`` only."""
        self.mode: Mode = rules.mode
        self.accounts = accounts
        self.tokens = tokens
        self.ldap = ldap if ldap is not None and ldap.is_used else None
        self.audit = audit
        self.logins = logins
        self.version = 0
        """Increases with each change of rights. Results from before a change may be invalid after
        it."""
        self.on_new_version: Callable[[], None] = lambda: None
        """Called after each change of rights, also if subjects have only gained rights."""
        self.first_password = ""
        """Password of the administrator that this start has created; otherwise empty. The server
        shows it once and then clears it."""
        self.definition_of: DefinitionOf = lambda name: None
        """Returns the attributes of a channel or queue for audit records. Set by the realm."""
        self.passwords = Passwords(offload)
        self._failure_delay_s = rules.failure_delay_s
        self._lockout = Lockout(rules.lockout)
        self._takes_cleartext = rules.cleartext_passwords
        self._apart = rules.apart
        self._revoked: frozenset[tuple[str, ...]] = frozenset()
        self._clock = clock
        self._naming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by name of a store; see :meth:`naming`. References are weak, so that a lock is
        dropped once no task holds it or waits for it."""
        self._listeners: list[Callable[[], None]] = []
        accounts.on_rights_changed = self._rights_changed
        self.issued_tokens = Logins(
            clock, idle_s=TOKEN_S, total_s=TOKEN_S, of_user_max=TOKENS_OF_USER_MAX
        )
        """Tokens that stand for passwords. They end with this process."""
        accounts.user_changed = self._user_changed
        for sessions in (logins, self.issued_tokens):
            sessions.password_of = accounts.password_mark

    @classmethod
    def off(cls, clock: Clock) -> AccessControl:
        """Return an access control that allows everything, for a realm without authentication."""
        accounts = Accounts(None, clock, inline)
        tokens = Tokens(TokenRules(), lambda _: b"", clock, offload=inline)
        return cls(
            accounts,
            tokens,
            Audit(clock),
            logins=Logins(clock),
            offload=inline,
            rules=AccessRules(),
            clock=clock,
        )

    @property
    def is_open(self) -> bool:
        """Whether authentication is off (SEM A4): every client that can connect may do
        everything."""
        return self.mode == "off"

    @property
    def checks_nothing(self) -> bool:
        """Whether requests need no check, because every client may do everything."""
        return self.is_open

    def admit(self, request: Request[Any]) -> None:
        """Raise an error if this realm refuses requests of this type from all clients.

        This class refuses no request; a subclass can override the method.
        """

    async def close(self) -> None:
        """Close the audit log, and the connections to the directory."""
        if self.ldap is not None:
            self.ldap.close()
        await self.audit.close()

    async def begin(self) -> None:
        """Load users, groups and rights.

        If no subject may administer the realm, create a first administrator and set
        :attr:`first_password`, unless a cluster shares the accounts. Raises ``Damaged``,
        ``StorageFailed``.
        """
        if self.is_open:
            return
        await self.accounts.load()
        await self.logins.load()
        await self.audit.load()
        if self.accounts.shared is not None:
            return  # administrators are users of the cluster's realm
        on_realm = self.accounts.acl.entries("realm")
        if any({"full", "manage_acl"} & {*entry.rights} for entry in on_realm):
            return
        if not self.accounts.knows(FIRST_USER):
            self.first_password = new_password()
            await self.accounts.create_user(FIRST_USER, self.first_password)
        await self.accounts.grant("realm", "", f"{FIRST_USER}@*", rights=("full",))
        await self.audit.note("realm", "user.change", FIRST_USER, reason="first administrator")

    async def reset(self, user: str, password: str = "") -> str:
        """Give ``user`` all rights and a password, on a realm that does not run, and return the
        password. An empty ``password`` is replaced by a generated one; a missing user is created.

        Raises ``IllegalState`` if authentication is off, ``InvalidArgument``, ``Damaged``,
        ``StorageFailed``.
        """
        await self.accounts.load()
        # The audit log is loaded first, so that the record below gets the next number.
        await self.audit.load()
        new_text = password or new_password()
        if self.accounts.knows(user):
            await self.accounts.set_password(user, new_text)
        else:
            await self.accounts.create_user(user, new_text)
        await self.accounts.grant("realm", "", f"{user}@*", rights=("full",))
        await self.audit.note("offline", "user.reset", user, granted=("full",))
        return new_text

    # --- authentication ------------------------------------------------------------------

    def is_private(self, host: str, *, secure: bool) -> bool:
        """Whether ``host`` may send a secret unencrypted: over TLS (``secure``), inside this
        machine, or if the settings allow it."""
        return secure or self._takes_cleartext or is_loopback(host)

    def check_private(self, host: str, *, secure: bool) -> None:
        """Raise ``InsecureConnection`` if others could read what the client sends."""
        if not self.is_private(host, secure=secure):
            raise InsecureConnection(
                "passwords and tokens are not accepted over the network without TLS: use https, "
                "amqps or penstocks, and change the one just sent, because others may have read "
                "it (access.cleartext_passwords allows them anyway)"
            )

    async def password(self, user: str, password: str, host: str, *, secure: bool) -> Principal:
        """Return the principal of a user who sent the password itself (PLAIN, HTTP Basic, the
        console's form), over TLS if ``secure``.

        The check runs off the loop, and a correct password is remembered for a while. A user with
        a password here signs in with it alone; others are users of the directory (SEM A7). Raises
        ``AuthenticationFailed``, ``SignInLocked``, ``InsecureConnection``, and ``Unavailable`` if
        the directory does not answer.
        """
        self.check_private(host, secure=secure)
        if self.ldap is not None and self.accounts.verifier_of(user) is None:
            return await self._user_of_directory(self.ldap, user, password, host=host)
        # Before the check, so that a locked user costs no key derivation.
        self.check_locked(user, host)
        verifier = self.accounts.verifier_of(user)
        # For an unknown user a decoy is checked, so that the duration does not reveal which users
        # exist.
        is_right = await self.passwords.is_right(
            password,
            verifier or self.accounts.decoy(user),
            network_of(host),
            recheck=lambda: self.check_locked(user, host),
            user=user,
        )
        # Another attempt may have failed, and locked the user, during the check of the password.
        self.check_locked(user, host)
        if verifier is None or not is_right:
            await self.failed(user, host, "password")
            raise AuthenticationFailed(_WRONG)
        return self.proven(user, host)

    async def _user_of_directory(
        self, ldap: Ldap, user: str, password: str, host: str
    ) -> Principal:
        """Return the principal of a user of the directory (SEM A7). Raises the errors of
        :meth:`password`."""
        try:
            name = directory_name(user)
        except InvalidArgument:
            name = ""
        # Failures count for the normalized name: otherwise each spelling of a name could be guessed
        # at separately.
        counted_name = name or user

        def check_locked() -> None:
            self.check_locked(counted_name, host)

        check_locked()
        is_foreign = name not in ("", ANONYMOUS) and self.accounts.verifier_of(name) is None
        groups = await ldap.groups_of(name, password, host, check_locked) if is_foreign else None
        # Another attempt may have failed, and locked the user, during the check of the password.
        check_locked()
        if groups is None:
            await self.failed(counted_name, host, "password")
            raise AuthenticationFailed(_WRONG)
        self._lockout.reset_failures(counted_name, host)
        until_us = self._clock.now_us() + ldap.session_us
        return Principal(
            self._prefixed("ldap", name), host, groups, proof="ldap", until_us=until_us
        )

    def scram(self, first: bytes, host: str) -> tuple[ScramServer, Verifier]:
        """Begin an exchange of SCRAM-SHA-256. Return the exchange and the user's verifier; for an
        unknown user a decoy, so that the answer does not reveal which users exist. Raises
        ``AuthenticationFailed``, ``SignInLocked``."""
        exchange = ScramServer(first, secrets.token_urlsafe(NONCE_BYTES))
        self.check_locked(exchange.user, host)
        verifier = self.accounts.verifier_of(exchange.user)
        return exchange, verifier or self.accounts.decoy(exchange.user)

    async def scram_proven(
        self, exchange: ScramServer, proof: bytes, host: str
    ) -> tuple[Principal, bytes]:
        """Check the last message of an exchange; return the principal, and the server's signature
        that proves to the client that this realm knows the password. Raises
        ``AuthenticationFailed``, ``SignInLocked``."""
        self.check_locked(exchange.user, host)
        try:
            outcome = exchange.outcome(proof)
        except AuthenticationFailed:
            await self.failed(exchange.user, host, "password")
            if self.ldap is not None:
                # For every user, so that the text does not reveal which users the realm knows.
                raise AuthenticationFailed(
                    f"{_WRONG}; users of the directory have to send the password itself over TLS "
                    f"(?sign_in=plain in a URL, PLAIN over AMQP)"
                ) from None
            raise
        return self.proven(exchange.user, host), outcome

    def proven(self, user: str, host: str) -> Principal:
        """Return the principal of a user who has proved the password, and reset the count of failed
        sign-ins."""
        self._lockout.reset_failures(user, host)
        return Principal(user, host, proof="password")

    def check_locked(self, user: str, host: str) -> None:
        """Raise ``SignInLocked`` while sign-ins of ``user`` from ``host`` are locked out."""
        wait_s = self._lockout.wait_s(user, host, self._clock.now_us())
        if wait_s > 0:
            raise SignInLocked(
                f"too many failed sign-ins of this user or from {host}; "
                f"try again in {math.ceil(wait_s)} s",
                wait_s,
            )

    async def token(self, text: str, host: str, *, secure: bool) -> Principal:
        """Return the principal of a bearer token, sent over TLS if ``secure``. Raises
        ``AuthenticationFailed``, ``Unavailable``, ``InsecureConnection``."""
        self.check_private(host, secure=secure)
        try:
            principal = await self.tokens.principal(text, host)
        except AuthenticationFailed:
            await self.failed("", host, "token")
            raise
        return replace(principal, user=self._prefixed("token", principal.user))

    async def issued_token(self, text: str, host: str, *, secure: bool) -> Principal | None:
        """Return the principal of a token that this realm has issued, with the user's present
        rights at ``host``; None for the token of an identity provider.

        Raises ``AuthenticationFailed`` if the token has ended or was never issued,
        ``InsecureConnection``.
        """
        self.check_private(host, secure=secure)
        login = self.issued_tokens.find(text)
        if login is not None:
            return replace(login.principal, host=host)
        if "." in text:  # the tokens of providers have parts
            return None
        await self.failed("", host, "token")
        raise AuthenticationFailed(
            "the token is not known here or has ended: a token ends after an hour, with the "
            "user's password and when the realm restarts; get a new one with the password"
        )

    def _prefixed(self, proof: str, name: str) -> str:
        """Return the user that a token, certificate or directory names. The name gets the prefix of
        the ``proof``, unless the settings do not distinguish such users from users with a
        password."""
        return PROOF_PREFIXES[proof] + name if proof in self._apart else name

    def certificate(self, peer: Mapping[str, Any] | None, host: str) -> Principal | None:
        """Return the principal that a verified client certificate names (SEM A5), valid until the
        certificate expires; None without a certificate. Raises ``AuthenticationFailed`` for an
        invalid user name, and for a certificate that has expired or was revoked since the TLS
        handshake."""
        name = name_in(peer) if peer else ""
        if not peer or not name or name == ANONYMOUS:
            return None
        try:
            user = self._prefixed("certificate", checked_name(name, "user"))
        except InvalidArgument as error:
            raise AuthenticationFailed(
                f"the certificate does not name a valid user: {error}"
            ) from error
        issued, until_us = issued_as(peer), ends_us(peer)
        principal = Principal(
            user, host, proof="certificate", until_us=until_us, certificate=issued
        )
        self._check_proof(principal, self._clock.now_us())
        return principal

    def revoke(self, certificates: frozenset[tuple[str, ...]]) -> None:
        """End the sessions that were opened with revoked certificates."""
        if certificates != self._revoked:
            self._revoked = certificates
            self._rights_changed(may_lose_rights=True)

    def _check_proof(self, principal: Principal, now_us: int) -> None:
        """Raise ``AuthenticationFailed`` if the token, certificate or sign-in of a principal has
        expired, or the certificate was revoked."""
        if 0 < principal.until_us < now_us:
            if principal.proof == "ldap":
                raise AuthenticationFailed(
                    "the sign-in of this user of the directory has ended (access.ldap.session_s); "
                    "sign in again"
                )
            proof = "certificate" if principal.proof == "certificate" else "token"
            raise AuthenticationFailed(f"the {proof} has expired; sign in with a new one")
        if principal.certificate and principal.certificate in self._revoked:
            raise AuthenticationFailed("the certificate was revoked; sign in with another one")

    def anonymous(self, host: str, claimed: str = "") -> Principal:
        """Return the principal of a client that does not sign in: the user it claims to be if
        authentication is off. Raises ``AuthenticationFailed`` if authentication is mandatory."""
        if self.is_open:
            return Principal(claimed or ANONYMOUS, host, trusted=True)
        if self.mode == "mandatory":
            raise AuthenticationFailed(
                "authentication required: send user and password "
                "(penstock://user:password@host), a token, or a client certificate"
            )
        return Principal(ANONYMOUS, host)

    async def failed(self, user: str, host: str, how: str) -> None:
        """Log a failed sign-in, and delay its answer. Too many failures lock further sign-ins for a
        while; the audit log records the lock."""
        _log.warning("access.sign_in_refused", user=_shown(user), host=host, how=how)
        self.audit.record_later(
            f"{_shown(user)}@{host}", "sign_in", AuthenticationFailed.code, how=how
        )
        # Only passwords can be guessed, so failed tokens and certificates lock nothing.
        if how == "password":
            for lock in self._lockout.failed(user, host, self._clock.now_us()):
                name = _shown(lock.name)
                _log.warning(
                    "access.sign_in_locked", what=lock.what, name=name, host=host, s=lock.seconds
                )
                await self.audit.note(
                    "realm", "sign_in.lock", name, what=lock.what, host=host, seconds=lock.seconds
                )
        await asyncio.sleep(self._failure_delay_s)

    def is_own_password(self, principal: Principal, user: str) -> bool:
        """Whether ``principal`` has signed in with the password of ``user``."""
        return user == principal.user and principal.proof == "password"

    def own_verifier(self, principal: Principal) -> Verifier:
        """Return the verifier of the password that ``principal`` has signed in with. Raises
        ``IllegalState`` if another proof was used."""
        verifier = self.accounts.verifier_of(principal.user)
        if principal.proof != "password" or verifier is None:
            raise IllegalState(
                "only a user who signed in with a password of this realm can change it here; an "
                "administrator can set a new one"
            )
        return verifier

    async def check_old(
        self, principal: Principal, is_right: Callable[[Verifier], bool | Awaitable[bool]]
    ) -> None:
        """Check the old password of a user who changes their own password: an open session must
        not suffice to take over an account. Raises ``AuthenticationFailed``, ``SignInLocked``,
        ``IllegalState``."""
        verifier = self.own_verifier(principal)
        self.check_locked(principal.user, principal.host)
        outcome = is_right(verifier)
        if not (outcome if isinstance(outcome, bool) else await outcome):
            await self.failed(principal.user, principal.host, "password")
            raise AuthenticationFailed(
                "the old password is missing or wrong; send it together with the new one"
            )
        self._lockout.reset_failures(principal.user, principal.host)

    async def change_own(self, principal: Principal, old: str, new: str) -> None:
        """Change the password of ``principal``; both passwords are plain texts. Raises the errors
        of :meth:`check_old`, and ``InvalidArgument``."""
        user = principal.user
        await self.check_old(
            principal, lambda verifier: self.passwords.is_right(old, verifier, user=user)
        )
        await self.accounts.set_password(principal.user, new)

    def check_still(self, principal: Principal, now_us: int) -> None:
        """Raise an error if sessions of ``principal`` have to end: ``AuthenticationFailed`` if its
        proof is no longer valid, ``AccessDenied`` if it lacks the right to open a session."""
        if principal.trusted:
            return
        if principal.proof == "password" and not self.accounts.knows(principal.user):
            raise AuthenticationFailed(f"user {principal.user} was deleted")
        self._check_proof(principal, now_us)
        self.require(principal, "session.open")

    def signed_in(self, principal: Principal, how: str) -> None:
        """Record a sign-in of ``principal`` in the audit log."""
        if not self.is_open and not principal.trusted:
            self.audit.record_later(principal.name, "sign_in", how=how, proof=principal.proof)

    # --- authorization -------------------------------------------------------------------

    def require(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> None:
        """Raise ``AccessDenied``, which names the missing right, if an operation is not allowed
        (SEM A3).

        ``operation`` is one of :data:`penstock_core.api.operations.OPERATIONS`, ``name`` is that of
        its channel or queue. ``by_number`` is True if the client sent an id and may not know the
        name.
        """
        if self.is_open or principal.trusted:
            return
        requirement = OPERATIONS[operation]
        refusal = self.accounts.acl.missing(principal, requirement, name, by_number=by_number)
        if refusal is not None:
            raise refusal

    def allows(
        self, principal: Principal, operation: str, name: str = "", *, by_number: bool = False
    ) -> bool:
        """Return whether an operation is allowed; the arguments are those of :meth:`require`."""
        if self.is_open or principal.trusted:
            return True
        requirement = OPERATIONS[operation]
        return self.accounts.acl.missing(principal, requirement, name, by_number=by_number) is None

    def require_publish(self, principal: Principal, kind: str, name: str) -> None:
        """Check that ``principal`` may publish dead events to the store that they came from. Raises
        ``AccessDenied`` without the name if ``principal`` may not see it."""
        operation, right = ("queue.push", "push") if kind == "queue" else _PUBLISH
        if self.allows(principal, operation, name):
            return
        if self.visible(principal, kind, [name]):
            self.require(principal, operation, name)
        raise AccessDenied(
            f"{principal.name} lacks {right!r} on a {kind} where these events came from; select "
            f"other events, or name a destination"
        )

    def effective(self, principal: Principal, kind: str, name: str = "") -> frozenset[str]:
        """Return the rights of ``principal`` on a resource."""
        if self.is_open:
            return frozenset(RIGHTS[kind])
        return self.accounts.acl.effective(principal, kind, name)

    def visible(self, principal: Principal, kind: str, names: Iterable[str]) -> list[str]:
        """Return the subset of ``names`` on which the principal has any right."""
        if self.is_open or principal.trusted:
            return list(names)
        on_realm = self.accounts.acl.effective(principal, "realm")
        if any(right in on_realm for right in _SEES_ALL):
            return list(names)
        return [name for name in names if self.accounts.acl.effective(principal, kind, name)]

    def me(self, principal: Principal) -> Me:
        """Return the description of a principal that its client may request."""
        groups = self.accounts.acl.groups_of(principal)
        on_realm = self.effective(principal, "realm")
        return Me(
            user=principal.user,
            host=principal.host,
            groups=tuple(sorted(groups)),
            mode=self.mode,
            realm=tuple(right for right in RIGHTS["realm"] if right in on_realm),
            password_rounds=self.accounts.rounds,
            password_length_min=1 if self.is_open else self.accounts.length_min,
        )

    # --- acts ----------------------------------------------------------------------------

    @asynccontextmanager
    async def act(
        self,
        principal: Principal,
        operation: str,
        name: str = "",
        target: str = "",
        *,
        by_number: bool = False,
        **detail: Any,
    ) -> AsyncIterator[None]:
        """Require an operation, run the ``async with`` block, and write an audit record if the
        operation is audited.

        The target in the record is ``target``, or ``name`` if ``target`` is empty. A refusal is
        also recorded. The record of a success has the attributes that the act has changed.
        """
        about = target or name
        is_audited = not self.is_open and OPERATIONS[operation].audited
        # The state before is read for audited operations only, because reading it takes time.
        before = self._state_of(operation, name, about) if is_audited else {}
        try:
            self.require(principal, operation, name, by_number=by_number)
            yield
        except PenstockError as error:
            await self._record(principal, operation, about, outcome=error.code, detail=detail)
            raise
        if is_audited:
            changed = changes(before, self._state_of(operation, name, about))
            more = {"changed": changed} if changed else {}
            await self._record(principal, operation, about, outcome="done", detail=detail | more)

    def _state_of(self, operation: str, name: str, target: str) -> dict[str, str]:
        return state_of(
            operation, name, target, accounts=self.accounts, definition_of=self.definition_of
        )

    async def _record(
        self, by: Principal, operation: str, target: str, outcome: str, detail: dict[str, Any]
    ) -> None:
        if not self.is_open and OPERATIONS[operation].audited:
            await self.audit.note(by.name, operation, target, outcome, **detail)

    def naming(self, name: str) -> asyncio.Lock:
        """Return the lock for creating and deleting a channel or queue of this name. It is held
        until the rights of the store are changed, so that a later store of the same name cannot get
        the rights of a deleted one."""
        return self._naming.setdefault(name, asyncio.Lock())

    async def created(self, principal: Principal, kind: str, name: str) -> None:
        """Grant all rights on a new channel or queue to its creator alone (SEM A3)."""
        if self.is_open:
            return
        creator = f"{principal.user}@*"
        has_no_owner = principal.trusted or principal.user == ANONYMOUS
        entries = [] if has_no_owner else [Entry(creator, ("full",))]
        await self.accounts.replace_entries(kind, name, entries)

    async def grant_temporary(self, principal: Principal, kind: str, name: str) -> None:
        """Grant all rights on a new temporary destination to its user, also if the user is
        anonymous (SEM R2)."""
        if not self.is_open and not principal.trusted:
            entry = Entry(f"{principal.user}@*", ("full",))
            await self.accounts.replace_entries(kind, name, [entry])

    def creator_of_reply_queue(self, name: str) -> str:
        """Return the user who created a reply queue; empty if the user is not known."""
        entries = [] if self.is_open else self.accounts.acl.entries("queue", name)
        return parse_subject(entries[0].subject).user if entries else ""

    async def deleted(self, kind: str, name: str) -> None:
        """Remove the rights on a deleted channel or queue, so that a later store of the same name
        starts without them."""
        if not self.is_open:
            await self.accounts.replace_entries(kind, name, [])

    # --- changes -------------------------------------------------------------------------

    def on_changed(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` whenever a subject may have lost rights. Return a function that removes
        the listener. Gained rights cause no call: a caller that has refused a request checks it
        again once :attr:`version` has grown."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _user_changed(self, user: str) -> None:
        """End the sessions of a user whose password or account has changed."""
        self.logins.close_of(user)
        self.issued_tokens.close_of(user)

    def _rights_changed(self, *, may_lose_rights: bool) -> None:
        """Begin a new version of the rights, and call the listeners if rights may have been
        lost."""
        self.version += 1
        if may_lose_rights:
            # This is a copy, because a listener may remove itself while it is called.
            for listener in list(self._listeners):
                listener()
        self.on_new_version()

    def reload(self) -> None:
        """Forget the identity provider's keys and the answers of the directory, so that both are
        asked again."""
        self.tokens.forget()
        if self.ldap is not None:
            self.ldap.reload()


def name_in(peer: Mapping[str, Any]) -> str:
    """Return the user that a certificate names: its common name, or its first alternative name."""
    for part in peer.get("subject", ()):
        for field, value in part:
            if field == "commonName":
                return str(value)
    names = [str(value) for kind, value in peer.get("subjectAltName", ()) if kind != "IP Address"]
    return names[0] if names else ""


def issued_as(peer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the serial number and the issuer of a certificate, which identify it together."""
    issuer = sorted(str(value) for part in peer.get("issuer", ()) for _, value in part)
    # The serial number has the form of revocation lists: upper case, without leading zeros.
    return (str(peer.get("serialNumber", "")).lstrip("0").upper(), *issuer)


def ends_us(peer: Mapping[str, Any]) -> int:
    """Return the expiry of a certificate, in microseconds since 1970; 0 if it has none."""
    text = str(peer.get("notAfter", ""))
    if not text:
        return 0
    ends = datetime.strptime(text, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)
    return int(ends.timestamp()) * 1_000_000


def _shown(user: str) -> str:
    """Return a user name for the log: on one line, and not longer than valid names."""
    return user[:NAME_LENGTH_MAX] if user.isprintable() else ascii(user[:NAME_LENGTH_MAX])
