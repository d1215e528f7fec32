"""Users, groups and rights, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.access import AclInfo, AuditRecord, GroupInfo, Me, UserInfo
from penstock.client.connection.threads import LoopThread
from penstock.client.handles import access as aio_access


class Access:
    """Who may do what: ``session.access``; see :class:`penstock.aio.Access`."""

    def __init__(self, inner: aio_access.Access, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def me(self) -> Me:
        """Who this session is, and its rights on the realm."""
        return self._loop.call(self._inner.me())

    def users(self) -> list[UserInfo]:
        """All users, by name."""
        return self._loop.call(self._inner.users())

    def create_user(self, name: str, password: str | None = None) -> UserInfo:
        """Without a password the user signs in with a token or certificate only."""
        return self._loop.call(self._inner.create_user(name, password))

    def set_password(self, name: str, password: str, old: str | None = None) -> None:
        """Of another user; or of oneself, for which the ``old`` one is needed."""
        self._loop.call(self._inner.set_password(name, password, old))

    def delete_user(self, name: str) -> None:
        """The user's sessions end at once."""
        self._loop.call(self._inner.delete_user(name))

    def groups(self) -> list[GroupInfo]:
        """All groups, by name."""
        return self._loop.call(self._inner.groups())

    def create_group(self, name: str, members: Iterable[str] = ()) -> GroupInfo:
        """Members are names of users."""
        return self._loop.call(self._inner.create_group(name, members))

    def change_group(
        self, name: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
    ) -> GroupInfo:
        """Members are names of users."""
        return self._loop.call(self._inner.change_group(name, add=add, remove=remove))

    def delete_group(self, name: str) -> None:
        """What the group was granted goes with it."""
        self._loop.call(self._inner.delete_group(name))

    def entries(self, *, channel: str = "", queue: str = "") -> AclInfo:
        """What was granted on a channel, a queue, or the realm."""
        return self._loop.call(self._inner.entries(channel=channel, queue=queue))

    def grant(self, subject: str, *rights: str, channel: str = "", queue: str = "") -> AclInfo:
        """Add rights on a channel, a queue, or the realm; see :meth:`penstock.aio.Access.grant`."""
        return self._loop.call(self._inner.grant(subject, *rights, channel=channel, queue=queue))

    def revoke(self, subject: str, *rights: str, channel: str = "", queue: str = "") -> AclInfo:
        """Take rights away, all of them when none is named."""
        return self._loop.call(self._inner.revoke(subject, *rights, channel=channel, queue=queue))

    def audit(
        self, limit: int = 100, *, before: int | None = None, kind: str = "acts"
    ) -> list[AuditRecord]:
        """The newest acts of administration, the newest first; or ``sign-ins``, or ``refusals``."""
        return self._loop.call(self._inner.audit(limit, before=before, kind=kind))
