"""Routes for console sessions, users, groups, rights and the audit log."""

from __future__ import annotations

from typing import Any

from penstock_core.api import access as api
from penstock_core.api.access import (
    AclInfo,
    AddUser,
    ChangeGroup,
    ChangePassword,
    CreateGroup,
    DeleteGroup,
    DeleteUser,
    Grant,
    GroupInfo,
    ListEntries,
    ListGroups,
    ListUsers,
    LogIn,
    LogOut,
    ReadAudit,
    ResetPassword,
    Revoke,
    WhoAmI,
)
from penstock_server.frontends.http.binding import bound
from penstock_server.frontends.http.finding import cursor_of
from penstock_server.frontends.http.people_shapes import (
    AclChange,
    AclEntry,
    AclQuery,
    AuditEntry,
    AuditQuery,
    GroupChange,
    Login,
    Me,
    NewGroup,
    NewUser,
    NewUserAnswer,
    OwnPassword,
    Password,
    UserAnswer,
)
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import After, Done, NoQuery, Page, answer_from

# --- sessions of the console --------------------------------------------------------------


async def login(call: Call[NoQuery, Login]) -> Me:
    """Log in to the console. The answer sets the session cookie, and has the CSRF token."""
    opened = await call.ask(LogIn(call.body.user, call.body.password))
    _set_cookie(call, opened.id, int(call.service.limits.login_total_s))
    return _me(opened.me, opened.csrf)


async def logout(call: Call[NoQuery, None]) -> Done:
    """Log out of the console."""
    await call.ask(LogOut(call.guard.secret_in(call.headers)))
    _set_cookie(call, "", 0)
    return Done()


async def me(call: Call[NoQuery, None]) -> Me:
    """Show your user name, your groups and your rights on the realm."""
    return _me(await call.ask(WhoAmI()), call.guard.csrf_of(call.headers))


def _set_cookie(call: Call[Any, Any], value: str, age_s: int) -> None:
    # Without TLS, browsers do not accept a secure cookie.
    secure = "; Secure" if call.service.is_secure else ""
    name = call.guard.cookie(call.headers)
    cookie = f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict{secure}"
    call.reply_headers.append(("set-cookie", cookie))


def _me(identity: api.Me, csrf: str | None) -> Me:
    """Return the answer about the current user. ``csrf`` is the token of a browser session; None
    without one."""
    return Me(
        name=f"{identity.user}@{identity.host}",
        user=identity.user,
        host=identity.host,
        groups=list(identity.groups),
        mode=identity.mode,
        rights=list(identity.realm),
        csrf=csrf,
    )


# --- rights -------------------------------------------------------------------------------


async def list_acl(call: Call[AclQuery, None]) -> Page[AclEntry]:
    """List the rights granted on the realm, or on a channel, queue or topic filter. The kind
    ``topic`` without a name lists those on all topic filters."""
    acl = await call.ask(ListEntries(call.query.kind, call.query.name))
    items = _entries(acl)
    for filter_name in acl.topics:
        items += _entries(await call.ask(ListEntries(acl.kind, filter_name)))
    return Page(items=items)


async def grant(call: Call[NoQuery, AclChange]) -> Page[AclEntry]:
    """Grant rights to a subject; the answer has all entries of the resource."""
    body = call.body
    request = Grant(body.kind, body.name, body.subject, rights=tuple(body.rights))
    changed = await call.ask(request, subject=body.subject, granted=body.rights)
    return Page(items=_entries(changed))


async def revoke(call: Call[NoQuery, AclChange]) -> Page[AclEntry]:
    """Revoke rights of a subject, or all if none is named; the answer has all entries of the
    resource."""
    body = call.body
    request = Revoke(body.kind, body.name, body.subject, rights=tuple(body.rights))
    changed = await call.ask(request, subject=body.subject, revoked=body.rights)
    return Page(items=_entries(changed))


def _entries(info: AclInfo) -> list[AclEntry]:
    """Return the entries of a resource in the form of answers."""
    return [
        AclEntry(kind=info.kind, name=info.name, subject=entry.subject, rights=list(entry.rights))
        for entry in info.entries
    ]


async def audit(call: Call[AuditQuery, None]) -> Page[AuditEntry]:
    """List administrative acts, sign-ins or refusals, newest first."""
    query = call.query
    records = await call.ask(ReadAudit(query.limit, cursor_of(query.after), query.kind))
    items = [answer_from(record, AuditEntry) for record in records]
    is_full = len(items) == call.query.limit
    return Page(items=items, next=str(items[-1].number) if is_full else None)


ROUTES = (
    Route("login", "POST", "login", asks=LogIn, endpoint=login),
    Route("logout", "POST", "logout", asks=LogOut, endpoint=logout),
    Route("getMe", "GET", "me", asks=WhoAmI, endpoint=me),
    bound(
        "changeMyPassword",
        "POST",
        "me/password",
        asks=ChangePassword,
        text="Change your own password; this requires the old one.",
        body=OwnPassword,
        names={"new": "password"},
    ),
    bound(
        "listUsers",
        "GET",
        "users",
        asks=ListUsers,
        text="List users, by name.",
        query=After,
        answer=Page[UserAnswer],
        paged_by="name",
    ),
    bound(
        "createUser",
        "POST",
        "users",
        asks=AddUser,
        text="Create a user. If the request has no password, one is generated and shown only in "
        "this answer.",
        body=NewUser,
        answer=NewUserAnswer,
        status=201,
    ),
    bound("deleteUser", "DELETE", "users/{user}", asks=DeleteUser, text="Delete a user."),
    bound(
        "setUserPassword",
        "POST",
        "users/{user}/password",
        asks=ResetPassword,
        text="Set the password of another user; the user's console sessions end.",
        body=Password,
    ),
    bound(
        "listGroups",
        "GET",
        "groups",
        asks=ListGroups,
        text="List groups and their members, by name.",
        query=After,
        answer=Page[GroupInfo],
        paged_by="name",
    ),
    bound(
        "createGroup",
        "POST",
        "groups",
        asks=CreateGroup,
        text="Create a group.",
        body=NewGroup,
        answer=GroupInfo,
        status=201,
    ),
    bound(
        "editGroup",
        "PATCH",
        "groups/{group}",
        asks=ChangeGroup,
        text="Add users to a group, or remove them from it.",
        body=GroupChange,
        answer=GroupInfo,
    ),
    bound(
        "deleteGroup",
        "DELETE",
        "groups/{group}",
        asks=DeleteGroup,
        text="Delete a group; its members lose the group's rights.",
    ),
    Route("listRights", "GET", "acl", asks=ListEntries, endpoint=list_acl),
    Route("grantRights", "POST", "acl/grant", asks=Grant, endpoint=grant),
    Route("revokeRights", "POST", "acl/revoke", asks=Revoke, endpoint=revoke),
    Route("readAuditLog", "GET", "audit", asks=ReadAudit, endpoint=audit),
)
