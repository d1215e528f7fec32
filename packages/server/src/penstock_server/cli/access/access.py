"""``penstock user``, ``penstock group``, ``penstock acl`` and ``penstock audit``, which manage
users and rights and show audit logs (SEM A)."""

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
    typer.Argument(
        help="Kind of resource that the rights apply to.", metavar="realm|channel|queue|topic"
    ),
]
Words = Annotated[
    list[str],
    typer.Argument(
        help="For a channel or queue, its name, or folder/* for all names below a folder; for a "
        "topic, an MQTT topic filter, with %u for the user and %c for the client id; the realm "
        "has no name. Then the subject (user@host, user@*, *@*, group:name), and the rights.",
        metavar="[NAME] SUBJECT [RIGHT]...",
    ),
]

users = command_group("Manage users.")
groups = command_group("Manage groups of users, which share rights.")
lists = command_group("Manage access rights.")


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
        typer.Option(
            "--without-password", help="The user signs in with a token or certificate only."
        ),
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a user. A new user has no rights; grant them with `penstock acl grant`.

    The command prompts for the password, or reads it from PENSTOCK_NEW_PASSWORD.

    \b
    Example:
      penstock user create alice
    """
    password = None if without_password else _new_password()
    with session(url) as realm:
        realm.access.create_user(user, password)
    write(f"user {user} created; allow access with: penstock acl grant realm {user}@* access")


@users.command("password")
def change_password(user: User, url: Url = DEFAULT_URL) -> None:
    """Change the password of a user, or your own.

    The command prompts for the new password, or reads it from PENSTOCK_NEW_PASSWORD. To change
    your own password, sign in with the old one, in the URL or in PENSTOCK_PASSWORD.

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
    data: Annotated[Path, typer.Option(help="Data directory of a stopped realm.", metavar="DIR")],
    user: Annotated[str, typer.Option(help="Name of the administrator.", metavar="USER")] = "admin",
    settings: SettingsFile = None,
) -> None:
    """Set a new password for the administrator of a stopped realm, and grant every right.

    The password is read from PENSTOCK_NEW_PASSWORD, or generated and shown once. The command
    needs write access to the data directory, and records the change in the audit log.

    \b
    Example:
      penstock user reset-admin --data ./data
    """
    import asyncio

    from structlog.testing import capture_logs

    from penstock_server import bootstrap

    mandatory = chosen(settings, {"access.mode": "mandatory"})
    preset = os.environ.get(NEW_PASSWORD_VARIABLE, "")
    with capture_logs():  # standard output is for the password
        password = asyncio.run(
            bootstrap.reset_administrator(data, mandatory, user, password=preset)
        )
    shown = "the password in PENSTOCK_NEW_PASSWORD" if preset else f"password {password}"
    write(f"user {user} has {shown} and every right, from the next start of the realm")


@users.command("delete")
def delete_user(user: User, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Delete a user with its rights; the user's sessions end immediately.

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
    """Show your user name, groups and rights on the realm.

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
    preset = os.environ.get(NEW_PASSWORD_VARIABLE)
    if preset is not None:
        return preset
    if not sys.stdin.isatty():
        # Scripts pass the password on standard input, so that no list of processes shows it.
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
    """Create a group.

    \b
    Example:
      penstock group create ops alice bob
    """
    with session(url) as realm:
        created = realm.access.create_group(group, members or ())
    write(f"group {group} created: {', '.join(created.members) or 'no members yet'}")


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
    """Remove users from a group; they lose its rights immediately.

    \b
    Example:
      penstock group remove ops bob
    """
    with session(url) as realm:
        changed = realm.access.change_group(group, remove=members)
    write(f"group {group}: {', '.join(changed.members) or 'no members'}")


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
        nothing="no groups; create one with: penstock group create NAME",
    )


# --- rights -------------------------------------------------------------------------------


@lists.command(cls=WordsCommand)
def grant(kind: Kind, words: Words, url: Url = DEFAULT_URL) -> None:
    """Grant rights to a subject, in addition to the rights it has.

    \b
    Examples:
      penstock acl grant realm alice@* access
      penstock acl grant channel orders group:ops subscribe publish
      penstock acl grant queue "work/*" *@10.0.0.7 push
      penstock acl grant topic "dev/%c/#" group:devices publish
    """
    name, subject, rights = _split(kind, words)
    if not rights:
        raise typer.BadParameter("name at least one right, such as access or subscribe")
    with session(url) as realm:
        acl = realm.access.grant(subject, *rights, **_resource(kind, name))
    _show(acl)


@lists.command(cls=WordsCommand)
def revoke(kind: Kind, words: Words, url: Url = DEFAULT_URL) -> None:
    """Revoke the named rights of a subject, or all its rights if none is named; this takes effect
    immediately.

    \b
    Examples:
      penstock acl revoke channel orders alice@* publish
      penstock acl revoke realm alice@*
    """
    name, subject, rights = _split(kind, words)
    with session(url) as realm:
        acl = realm.access.revoke(subject, *rights, **_resource(kind, name))
    _show(acl)


@lists.command("list")
def list_entries(
    kind: Kind,
    name: Annotated[
        str,
        typer.Argument(help="Name of the channel or queue, or the topic filter.", metavar="[NAME]"),
    ] = "",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """List the rights granted on the realm, a channel, a queue or a topic filter.

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
            filters = realm.access.topics()
            _show_topics([realm.access.entries(topic=text) for text in filters], format)
            return
        acl = realm.access.entries(**_resource(kind, name))
    if format == "json":
        write_json(acl)
    else:
        _show(acl)


def _split(kind: str, words: list[str]) -> tuple[str, str, list[str]]:
    """Return the name (empty for the realm), the subject and the rights among ``words``."""
    names = 0 if kind == "realm" else 1
    if len(words) <= names:
        raise typer.BadParameter(f"a {kind} takes {'NAME ' if names else ''}SUBJECT RIGHT...")
    return (words[0] if names else ""), words[names], words[names + 1 :]


def _resource(kind: str, name: str) -> dict[str, str]:
    """Return the keyword argument that names the resource of a grant."""
    return {} if kind == "realm" else {kind: name}


def _show_topics(acls: list[AclInfo], format: ListFormat) -> None:
    if format == "json":
        write_json(acls)
        return
    rows = [
        (acl.name, entry.subject, ", ".join(entry.rights)) for acl in acls for entry in acl.entries
    ]
    write_table(("topic", "subject", "rights"), rows, "no rights are granted on topics")


def _show(acl: AclInfo) -> None:
    resource = f"{acl.kind} {acl.name}" if acl.name else "the realm"
    rows = [(entry.subject, ", ".join(entry.rights)) for entry in acl.entries]
    write_table(("subject", "rights"), rows, f"no rights are granted on {resource}")


def audit(
    count: Annotated[
        int, typer.Option("--count", help="Maximum number of records to show.", min=1)
    ] = 50,
    kind: Annotated[
        Literal["acts", "sign-ins", "refusals"],
        typer.Option("--of", help="Log to show: administrative acts, sign-ins or refusals."),
    ] = "acts",
    format: ListFormat = "table",
    url: Url = DEFAULT_URL,
) -> None:
    """Show the latest administrative acts and their changes, the newest first.

    Sign-ins and refusals have separate logs: --of sign-ins, --of refusals. Repetitions in these
    are counted: `more` is how often the record above it was repeated.

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
    """Return the details of a record as text, beginning with the changes."""
    details = dict(record.detail)
    changes = details.pop("changed", {})
    parts = [f"{name}: {text}" for name, text in changes.items()]
    return "; ".join([*parts, *(f"{name}={value}" for name, value in details.items())])
