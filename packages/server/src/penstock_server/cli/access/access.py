"""``penstock user``, ``penstock group``, ``penstock acl``, ``penstock audit`` (SEM A)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock_server.cli.shared.choosing import chosen
from penstock_server.cli.shared.configuring import SettingsFile
from penstock_server.cli.shared.confirmation import Yes, confirm
from penstock_server.cli.shared.grouping import WordsCommand, command_group
from penstock_server.cli.shared.output import (
    ListFormat,
    moment_of_us,
    note,
    write,
    write_description,
    write_json,
    write_list,
    write_table,
)
from penstock_server.cli.shared.realm import DEFAULT_URL, Url, session

if TYPE_CHECKING:
    from penstock_core.api.access import AclInfo, AuditRecord, Me

NEW_PASSWORD_VARIABLE = "PENSTOCK_NEW_PASSWORD"

User = Annotated[str, typer.Argument(help="The user's name.", metavar="USER")]
Group = Annotated[str, typer.Argument(help="The group's name.", metavar="GROUP")]
Members = Annotated[list[str], typer.Argument(help="Names of users.", metavar="USER...")]
Kind = Annotated[
    Literal["realm", "channel", "queue", "topic"],
    typer.Argument(help="What the rights are on.", metavar="realm|channel|queue|topic"),
]
Words = Annotated[
    list[str],
    typer.Argument(
        help="The name of the channel or queue (none for the realm; folder/* for all below), or a "
        "topic filter of MQTT with %u for the user and %c for the client id, the "
        "subject (user@host, user@*, *@*, group:name), and rights.",
        metavar="[NAME] SUBJECT [RIGHT]...",
    ),
]

users = command_group("Who may sign in.")
groups = command_group("Users that are granted rights together.")
lists = command_group("Who may do what.")


def register(app: typer.Typer) -> None:
    app.add_typer(users, name="user")
    app.add_typer(groups, name="group")
    app.add_typer(lists, name="acl")
    app.command("audit")(audit)


# --- users --------------------------------------------------------------------------------


@users.command("create")
def create_user(
    user: User,
    without_password: Annotated[
        bool,
        typer.Option("--without-password", help="Signs in with a token or certificate only."),
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Make a user. It has no rights yet: see `penstock acl grant`.

    The password is asked for, or taken from PENSTOCK_NEW_PASSWORD.

    \b
    Example:
      penstock user create alice
    """
    password = None if without_password else _new_password()
    with session(url) as realm:
        realm.access.create_user(user, password)
    write(f"user {user} created; let it in with: penstock acl grant realm {user}@* access")


@users.command("password")
def change_password(user: User, url: Url = DEFAULT_URL) -> None:
    """Give a user, or yourself, a new password.

    It is asked for, or taken from PENSTOCK_NEW_PASSWORD. Your own is changed with the old one,
    which is what you sign in with: in the URL, or in PENSTOCK_PASSWORD.

    \b
    Example:
      penstock user password alice
    """
    from penstock.client.connection.credentials import Credentials
    from penstock.client.connection.urls import parse_url

    password = _new_password()
    with session(url) as realm:
        is_own = realm.access.me().user == user
        old = Credentials(parse_url(url)).password if is_own else ""
        realm.access.set_password(user, password, old or None)
    write(f"user {user} has a new password")


@users.command("reset-admin")
def reset_admin(
    data: Annotated[
        Path, typer.Option(help="Data directory of a realm that does not run.", metavar="DIR")
    ],
    user: Annotated[str, typer.Option(help="The administrator.", metavar="USER")] = "admin",
    settings: SettingsFile = None,
) -> None:
    """Give the administrator a new password while the realm is stopped, and every right.

    The password is made up and shown this once, or taken from PENSTOCK_NEW_PASSWORD. Whoever may
    write to the data directory may do this; the audit log has it.

    \b
    Example:
      penstock user reset-admin --data ./data
    """
    import asyncio

    from structlog.testing import capture_logs

    from penstock_server import bootstrap

    wanted = chosen(settings, {"access.mode": "mandatory"})
    given = os.environ.get(NEW_PASSWORD_VARIABLE, "")
    with capture_logs():  # standard output is for the password
        password = asyncio.run(bootstrap.reset_administrator(data, wanted, user, password=given))
    shown = "the password in PENSTOCK_NEW_PASSWORD" if given else f"password {password}"
    write(f"user {user} has {shown}, and every right; it counts from the next start on")


@users.command("delete")
def delete_user(user: User, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a user with its rights; its sessions end at once.

    \b
    Example:
      penstock user delete alice --yes
    """
    with session(url) as realm:
        confirm(f"Delete the user {user} with its rights?", yes=yes)
        realm.access.delete_user(user)
    write(f"user {user} deleted")


@users.command("list")
def list_users(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the users of the realm.

    \b
    Example:
      penstock user list
    """
    with session(url) as realm:
        infos = realm.access.users()
    write_list(
        format,
        infos,
        {
            "user": lambda user: user.name,
            "password": lambda user: "yes" if user.has_password else "no",
            "groups": lambda user: ", ".join(user.groups),
            "created": lambda user: moment_of_us(user.created_us),
        },
        nothing="no users",
    )


@users.command("me")
def me(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """Show who you are to the realm.

    \b
    Example:
      penstock user me
    """
    with session(url) as realm:
        identity = realm.access.me()
    write_description(format, identity, _identity_facts)


def _identity_facts(identity: Me) -> list[tuple[str, str]]:
    return [
        ("user", f"{identity.user}@{identity.host}"),
        ("groups", ", ".join(identity.groups)),
        ("authentication", identity.mode),
        ("rights on the realm", ", ".join(identity.realm)),
    ]


def _new_password() -> str:
    given = os.environ.get(NEW_PASSWORD_VARIABLE)
    if given is not None:
        return given
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password: str = typer.prompt(
        "New password", hide_input=True, confirmation_prompt=True, err=True
    )
    return password


# --- groups -------------------------------------------------------------------------------


@groups.command("create")
def create_group(
    group: Group,
    members: Annotated[
        list[str] | None, typer.Argument(help="Names of users.", metavar="USER...")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Make a group.

    \b
    Example:
      penstock group create ops alice bob
    """
    with session(url) as realm:
        made = realm.access.create_group(group, members or ())
    write(f"group {group} created: {', '.join(made.members) or 'nobody yet'}")


@groups.command("add")
def add(group: Group, members: Members, url: Url = DEFAULT_URL) -> None:
    """Add users to a group.

    \b
    Example:
      penstock group add ops carol
    """
    with session(url) as realm:
        changed = realm.access.change_group(group, add=members)
    write(f"group {group}: {', '.join(changed.members)}")


@groups.command("remove")
def remove(group: Group, members: Members, url: Url = DEFAULT_URL) -> None:
    """Take users out of a group; what they had by it is gone at once.

    \b
    Example:
      penstock group remove ops bob
    """
    with session(url) as realm:
        changed = realm.access.change_group(group, remove=members)
    write(f"group {group}: {', '.join(changed.members) or 'nobody'}")


@groups.command("delete")
def delete_group(group: Group, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a group with its rights.

    \b
    Example:
      penstock group delete ops --yes
    """
    with session(url) as realm:
        confirm(f"Delete the group {group} with its rights?", yes=yes)
        realm.access.delete_group(group)
    write(f"group {group} deleted")


@groups.command("list")
def list_groups(format: ListFormat = "table", url: Url = DEFAULT_URL) -> None:
    """List the groups of the realm.

    \b
    Example:
      penstock group list
    """
    with session(url) as realm:
        infos = realm.access.groups()
    write_list(
        format,
        infos,
        {
            "group": lambda group: group.name,
            "members": lambda group: ", ".join(group.members),
        },
        nothing="no groups; make one with: penstock group create NAME",
    )


# --- rights -------------------------------------------------------------------------------


@lists.command(cls=WordsCommand)
def grant(kind: Kind, words: Words, url: Url = DEFAULT_URL) -> None:
    """Add rights; what a subject had it keeps.

    \b
    Examples:
      penstock acl grant realm alice@* access
      penstock acl grant channel orders group:ops subscribe publish
      penstock acl grant queue "work/*" *@10.0.0.7 push
      penstock acl grant topic "dev/%c/#" group:devices publish
    """
    name, subject, rights = _parted(kind, words)
    if not rights:
        raise typer.BadParameter("name at least one right, such as access or subscribe")
    with session(url) as realm:
        found = realm.access.grant(subject, *rights, **_where(kind, name))
    _show(found)


@lists.command(cls=WordsCommand)
def revoke(kind: Kind, words: Words, url: Url = DEFAULT_URL) -> None:
    """Take rights away, all of them when none is named; it counts at once.

    \b
    Examples:
      penstock acl revoke channel orders alice@* publish
      penstock acl revoke realm alice@*
    """
    name, subject, rights = _parted(kind, words)
    with session(url) as realm:
        found = realm.access.revoke(subject, *rights, **_where(kind, name))
    _show(found)


@lists.command("list")
def list_entries(
    kind: Kind,
    name: Annotated[
        str, typer.Argument(help="The channel, queue or topic filter.", metavar="[NAME]")
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show what was granted on the realm, a channel, a queue or a topic filter.

    \b
    Examples:
      penstock acl list realm
      penstock acl list channel orders --format json
      penstock acl list topic
    """
    if kind != "topic" and (kind == "realm") != (not name):
        raise typer.BadParameter(
            "a grant on the realm takes no name; channels, queues and topics have names"
        )
    with session(url) as realm:
        if kind == "topic" and not name:
            _show_topics(
                [realm.access.entries(topic=each) for each in realm.access.topics()], format
            )
            return
        found = realm.access.entries(**_where(kind, name))
    if format == "json":
        write_json(found)
    else:
        _show(found)


def _parted(kind: str, words: list[str]) -> tuple[str, str, list[str]]:
    own = 0 if kind == "realm" else 1
    if len(words) <= own:
        raise typer.BadParameter(f"a {kind} takes {'NAME ' if own else ''}SUBJECT RIGHT...")
    return (words[0] if own else ""), words[own], words[own + 1 :]


def _where(kind: str, name: str) -> dict[str, str]:
    return {} if kind == "realm" else {kind: name}


def _show_topics(found: list[AclInfo], format: ListFormat) -> None:
    if format == "json":
        write_json(found)
        return
    rows = [
        (info.name, entry.subject, ", ".join(entry.rights))
        for info in found
        for entry in info.entries
    ]
    write_table(("topic", "subject", "rights"), rows, "nothing is granted on topics")


def _show(found: AclInfo) -> None:
    what = f"{found.kind} {found.name}" if found.name else "the realm"
    rows = [(entry.subject, ", ".join(entry.rights)) for entry in found.entries]
    write_table(("subject", "rights"), rows, f"nothing is granted on {what}")


def audit(
    count: Annotated[int, typer.Option("--count", help="Most records shown.", min=1)] = 50,
    kind: Annotated[
        Literal["acts", "sign-ins", "refusals"],
        typer.Option("--of", help="What was done, who has signed in, or what was refused."),
    ] = "acts",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the newest acts of administration, the newest first, and what they changed.

    Sign-ins and refusals have logs of their own: --of sign-ins, --of refusals. What comes again
    and again is counted there: `more` says how often it came after the line above it.

    \b
    Examples:
      penstock audit --count 10
      penstock audit --of refusals
    """
    with session(url) as realm:
        records = realm.access.audit(count, kind=kind)
    write_list(
        format,
        records,
        {
            "time": lambda record: moment_of_us(record.at_us),
            "principal": lambda record: record.principal,
            "operation": lambda record: record.operation,
            "target": lambda record: record.target,
            "outcome": lambda record: record.outcome,
            "detail": _detail,
        },
        nothing=f"no {kind} yet",
    )
    if format == "table" and not records:
        note("a realm without authentication keeps no audit log")


def _detail(record: AuditRecord) -> str:
    """The rest of a record as text, with what was changed first."""
    rest = dict(record.detail)
    changed = rest.pop("changed", {})
    parts = [f"{name}: {text}" for name, text in changed.items()]
    return "; ".join([*parts, *(f"{name}={value}" for name, value in rest.items())])
