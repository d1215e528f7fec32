"""Bodies and answers of requests about users and rights."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from penstock_core.api.access import AuditRecord, CreatedUser, UserInfo
from penstock_server.frontends.http.shapes import (
    After,
    Answer,
    Members,
    QueryParameters,
    RequestBody,
    ResourceKind,
    shown,
)


class Login(RequestBody, frozen=True):
    user: Annotated[str, Meta(max_length=255)]
    password: Annotated[str, Meta(max_length=1_024)]


class Me(Answer, frozen=True):
    name: str
    """``user@host``."""
    user: str
    host: str
    groups: list[str]
    mode: str
    """Whether users must sign in: ``off``, ``optional`` or ``mandatory``."""
    rights: list[str]
    """Rights on the realm itself."""
    csrf: str | None = None
    """CSRF token of a console session; send it as ``X-CSRF-Token`` with every request that makes
    a change."""


class NewUser(RequestBody, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    password: Annotated[str, Meta(max_length=1_024)] | None = None
    """If omitted, a password is generated and shown only in the answer."""


UserAnswer = shown(
    UserInfo,
    "UserAnswer",
    without=frozenset(("created_us", "changed_us")),
    optional_from="has_password",
)
NewUserAnswer = shown(CreatedUser, "NewUserAnswer")


class Password(RequestBody, frozen=True):
    password: Annotated[str, Meta(min_length=1, max_length=1_024)]


class OwnPassword(RequestBody, frozen=True):
    password: Annotated[str, Meta(min_length=1, max_length=1_024)]
    """The new password."""
    old: Annotated[str, Meta(max_length=1_024)] = ""
    """The current password."""


class NewGroup(RequestBody, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    members: Members = ()


class GroupChange(RequestBody, frozen=True):
    add: Members = ()
    remove: Members = ()


class AclQuery(QueryParameters, frozen=True):
    kind: ResourceKind
    name: Annotated[str, Meta(max_length=255)] = ""
    """Channel, queue or topic filter; empty for the realm. ``*`` stands for all channels or queues,
    and a folder with ``/*`` for those below the folder."""


class AclChange(RequestBody, frozen=True):
    kind: ResourceKind
    subject: Annotated[str, Meta(min_length=1, max_length=600)]
    """``user@host``, ``user@*``, ``*@host``, ``*@*`` or ``group:name``."""
    name: Annotated[str, Meta(max_length=255)] = ""
    """Channel, queue or topic filter; empty for the realm."""
    rights: Annotated[list[str], Meta(max_length=32)] = field(default_factory=list)


class AclEntry(Answer, frozen=True):
    kind: str
    name: str
    subject: str
    rights: list[str]


class AuditQuery(After, frozen=True):
    kind: Literal["acts", "sign-ins", "refusals"] = "acts"


AuditEntry = shown(AuditRecord, "AuditEntry", moments=("at_us",))
