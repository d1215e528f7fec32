"""Users, tags and permissions of RabbitMQ as users and rights of a realm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.migration.conversion import Conversion
from penstock_tools.migration.regular_expressions import EVERYTHING, NOTHING, NamePatterns

_RIGHTS_OF_TAGS: Final = {
    "administrator": ("full",),
    "monitoring": ("monitor",),
    "policymaker": ("channels",),
    "management": (),
}
"""Rights on the realm that correspond to each tag of a user."""
_READ: Final = {"queue": ("peek", "pop", "purge"), "channel": ("subscribe", "durable", "purge")}
"""Rights to consume from a queue, and from a stream or the channel of an exchange."""
_WRITE: Final = {"queue": ("push",), "channel": ("publish",)}
_DEFAULT_EXCHANGE: Final = "amq.default"
"""Name of the exchange without a name in patterns of permissions."""


class VirtualHostEntry(Struct, frozen=True, kw_only=True):
    """An entry of a list of the document. An export of one virtual host does not name it."""

    virtual_host: str = field(default="", name="vhost")


class UserEntry(VirtualHostEntry, frozen=True, kw_only=True):
    """A user of the broker; password hashes are not read."""

    name: str
    tags: list[str] | str = []
    limits: Any = None

    @property
    def tag_list(self) -> list[str]:
        """The tags; older versions separate them with commas."""
        tags = self.tags.split(",") if isinstance(self.tags, str) else self.tags
        return [tag.strip() for tag in tags if tag.strip()]


class PermissionEntry(VirtualHostEntry, frozen=True, kw_only=True):
    """Patterns of the names that a user may configure, write to and read from."""

    user: str
    configure: str = ""
    write: str = ""
    read: str = ""


def convert_access(
    conversion: Conversion,
    *,
    users: Iterable[UserEntry],
    permissions: Iterable[PermissionEntry],
    names: Mapping[tuple[str, str], str],
    internal: Collection[str],
) -> None:
    """Add users and rights. ``names`` has the canonical names of stores by kind (queue, exchange)
    and name in the file; ``internal`` has the exchanges that clients may not publish to."""
    _AccessReading(conversion, names, internal).convert(users, permissions)


class _AccessReading:
    def __init__(
        self,
        conversion: Conversion,
        names: Mapping[tuple[str, str], str],
        internal: Collection[str],
    ) -> None:
        self._conversion = conversion
        self._names = names
        self._internal = internal
        self._patterns = NamePatterns(sorted({name for _, name in names} | {_DEFAULT_EXCHANGE}))

    def convert(self, users: Iterable[UserEntry], permissions: Iterable[PermissionEntry]) -> None:
        names = set()
        for user in sorted(users, key=lambda user: user.name):
            if user.name not in names and self._conversion.add_user(user.name, ("user", user.name)):
                names.add(user.name)
                self._convert_tags(user)
        if names:
            self._conversion.warn(
                f"passwords of {len(names)} users",
                "left out: they cannot be read; set each with penstock user password NAME",
            )
        for permission in sorted(permissions, key=lambda permission: permission.user):
            what = f"permissions of {permission.user}"
            if permission.user in names:
                self._convert_permission(permission, what)
            else:
                self._conversion.warn(what, "left out: the file has no such user")

    def _convert_tags(self, user: UserEntry) -> None:
        subject = f"{user.name}@*"
        place = ("user", user.name)
        for tag in user.tag_list:
            if tag not in _RIGHTS_OF_TAGS:
                self._conversion.warn(
                    f"user {user.name}: tag {tag}", "left out: no right corresponds to it"
                )
                continue
            self._conversion.grant(
                "realm", "", subject, ("access", *_RIGHTS_OF_TAGS[tag]), place=place
            )
        if user.limits:
            self._conversion.warn(
                f"user {user.name}: limits",
                "left out; limits.connections_per_user_max is for all users",
            )

    def _convert_permission(self, permission: PermissionEntry, what: str) -> None:
        subject, place = f"{permission.user}@*", ("permissions", f"of {permission.user}")
        self._conversion.grant("realm", "", subject, ("access",), place=place)
        if permission.configure in EVERYTHING:
            self._conversion.grant("realm", "", subject, ("channels", "realm"), place=place)
        elif permission.configure not in NOTHING:
            self._conversion.warn(
                f"{what}: configure {permission.configure!r:.80}",
                "left out: the right to create stores is for all names; grant channels on the "
                "realm if the user needs it",
            )
        for action, pattern in (("read", permission.read), ("write", permission.write)):
            if pattern in EVERYTHING:
                for kind, rights in (_READ if action == "read" else _WRITE).items():
                    self._conversion.grant(kind, "*", subject, rights, place=place)
            elif pattern not in NOTHING:
                try:
                    matching = self._patterns.matching(pattern)
                except InvalidArgument as error:
                    self._conversion.warn(f"{what}: {action} {pattern!r:.80}", f"left out: {error}")
                    continue
                self._grant_on_stores(action, matching, subject, place=place)

    def _grant_on_stores(
        self, action: str, matching: Collection[str], subject: str, *, place: tuple[str, str]
    ) -> None:
        """Grant rights on the stores of the queues and exchanges that a pattern matches."""
        rights = _READ if action == "read" else _WRITE
        if action == "write" and _DEFAULT_EXCHANGE in matching:
            self._conversion.grant("queue", "*", subject, _WRITE["queue"], place=place)
        for (origin, name), canonical in sorted(self._names.items()):
            if name not in matching:
                continue
            # The right to write to a queue is for binding it; messages are written to exchanges.
            if action == "write" and (origin == "queue" or name in self._internal):
                continue
            kind = self._conversion.stores[canonical].kind
            self._conversion.grant(kind, canonical, subject, rights[kind], place=place)
