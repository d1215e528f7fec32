"""``penstock user``, ``group``, ``acl``, ``audit``: what an administrator types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock_server.cli.program import app

Run = Callable[..., Result]
QUICK: dict[str, Any] = {
    "access__mode": "mandatory",
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
    "access__failure_delay_s": 0.0,
}


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
    ) as realm:
        yield realm


@pytest.fixture
def run(realm: penstock.Realm) -> Run:
    """Runs a command as the administrator, whose password is in the environment."""
    runner, url, password = CliRunner(), realm.listen(), realm.access.first_password

    def run(*arguments: str, user: str = "admin", stdin: str = "", secret: str = "") -> Result:
        environment = {
            "PENSTOCK_URL": url.replace("://", f"://{user}@"),
            "PENSTOCK_PASSWORD": secret or password,
        }
        return runner.invoke(app, list(arguments), input=stdin, env=environment)

    return run


def stopped(tmp_path: Path) -> Path:
    """The data directory of a realm with an administrator who has no right any more."""
    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        session.access.create_user("alice", "secret")
        session.access.grant("alice@*", "full")
        session.access.revoke("admin@*")
    return tmp_path


def reset(data: Path, *more: str, **environment: str) -> Result:
    arguments = ["user", "reset-admin", "--data", str(data), *more]
    return CliRunner().invoke(app, arguments, env=environment)


@pytest.mark.spec("A1", "A4")
def test_a_lost_password_is_replaced_while_the_realm_is_stopped(tmp_path: Path) -> None:
    data = stopped(tmp_path)

    done = reset(data)

    assert done.exit_code == 0, done.output
    match = re.search(r"user admin has password (\S+) and every right", done.output)
    assert match
    with penstock.Realm(data, **QUICK) as realm:
        assert realm.access.first_password == ""
        url = realm.listen().replace("://", f"://admin:{match[1]}@")
        with penstock.connect(url) as session:
            assert "full" in session.access.me().realm
            newest = session.access.audit()[0]
    assert (newest.principal, newest.operation, newest.target) == ("offline", "user.reset", "admin")
    assert match[1] not in str(newest)


def test_a_chosen_password_is_not_shown(tmp_path: Path) -> None:
    data = stopped(tmp_path)

    done = reset(data, "--user", "root", PENSTOCK_NEW_PASSWORD="a secret of mine")

    assert done.exit_code == 0, done.output
    assert "secret of mine" not in done.output
    with penstock.Realm(data, **QUICK) as realm:
        url = realm.listen().replace("://", "://root:a%20secret%20of%20mine@")
        with penstock.connect(url) as session:
            assert "full" in session.access.me().realm


def test_a_running_realm_and_a_foreign_folder_are_not_changed(tmp_path: Path) -> None:
    data = stopped(tmp_path)
    with penstock.Realm(data, **QUICK):
        running = reset(data)
    (tmp_path / "other").mkdir()
    refused = reset(tmp_path / "other")

    assert (running.exit_code, refused.exit_code) == (1, 1)
    assert "data-directory-in-use" in running.output
    assert "is not a Penstock data directory" in refused.output
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.spec("A1", "A3")
def test_a_user_is_created_signs_in_and_is_deleted(run: Run) -> None:
    assert run("user", "create", "alice", stdin="open sesame\n").exit_code == 0
    refused = run("channel", "list", user="alice", secret="open sesame")
    assert refused.exit_code == 1
    assert "penstock acl grant realm alice@* access" in refused.stderr

    granted = run("acl", "grant", "realm", "alice@*", "access", "channels")
    made = run("channel", "create", "orders", user="alice", secret="open sesame")
    mine = run("acl", "list", "channel", "orders", "--format", "json")

    assert granted.stdout.splitlines()[-1].split() == ["alice@*", "access,", "channels"]
    assert made.exit_code == 0
    assert json.loads(mine.stdout)["entries"] == [{"subject": "alice@*", "rights": ["full"]}]
    assert run("user", "delete", "alice", "--yes").stdout == "user alice deleted\n"
    result = run("channel", "list", user="alice", secret="open sesame")
    assert "authentication-failed" in result.stderr


def test_groups_are_changed_and_listed(run: Run) -> None:
    run("group", "create", "ops", "alice")
    added = run("group", "add", "ops", "bob", "carol")
    removed = run("group", "remove", "ops", "alice")
    listed = run("group", "list", "--format", "json")

    assert added.stdout == "group ops: alice, bob, carol\n"
    assert removed.stdout == "group ops: bob, carol\n"
    assert json.loads(listed.stdout) == [{"name": "ops", "members": ["bob", "carol"]}]
    assert run("group", "delete", "ops", "--yes").exit_code == 0
    assert run("group", "list").stdout.startswith("no groups")


def test_rights_are_revoked_one_or_all(run: Run) -> None:
    run("channel", "create", "orders")
    run("acl", "grant", "channel", "orders", "bob@*", "subscribe", "publish")

    one = run("acl", "revoke", "channel", "orders", "bob@*", "publish")
    rest = run("acl", "revoke", "channel", "orders", "bob@*")

    assert one.stdout.splitlines()[-1].split() == ["bob@*", "subscribe"]
    assert "bob" not in rest.stdout


@pytest.mark.spec("M15")
def test_rights_are_granted_on_topics(run: Run) -> None:
    run("acl", "grant", "topic", "dev/%c/#", "group:devices", "publish")
    run("acl", "grant", "topic", "cmd/+", "bob@*", "subscribe", "durable")

    every = run("acl", "list", "topic").stdout.splitlines()
    assert [line.split() for line in every][-2:] == [
        ["cmd/+", "bob@*", "subscribe,", "durable"],
        ["dev/%c/#", "group:devices", "publish"],
    ]
    grants = json.loads(run("acl", "list", "topic", "--format", "json").stdout)
    assert [grant["name"] for grant in grants] == ["cmd/+", "dev/%c/#"]
    assert "bob" in run("acl", "list", "topic", "cmd/+").stdout
    run("acl", "revoke", "topic", "cmd/+", "bob@*")
    assert "bob" not in run("acl", "list", "topic").stdout


def test_wrong_arguments_are_explained(run: Run) -> None:
    for arguments in (
        ["acl", "grant", "realm"],
        ["acl", "grant", "channel", "orders"],
        ["acl", "grant", "realm", "bob@*"],
        ["acl", "list", "realm", "orders"],
        ["acl", "list", "channel"],
    ):
        assert run(*arguments).exit_code == 2, arguments
    wrong = run("acl", "grant", "realm", "bob@*", "publish")
    assert (
        "'publish' is not a right on a realm; the rights are manage_acl, full, access"
        in wrong.stderr
    )


def test_a_password_is_changed_and_never_shown(run: Run) -> None:
    run("user", "create", "alice", stdin="first password\n")
    run("acl", "grant", "realm", "alice@*", "access")

    changed = run("user", "password", "alice", user="alice", secret="first password", stdin="n3w\n")
    me = run("user", "me", "--format", "json", user="alice", secret="n3w")
    shown = (
        run("user", "list").stdout + run("audit").stdout + run("audit", "--format", "json").stdout
    )

    assert changed.stdout == "user alice has a new password\n"
    assert json.loads(me.stdout)["realm"] == ["access"]
    assert "first password" not in shown
    assert "n3w" not in shown
    assert "me.password" in shown


def test_a_realm_without_authentication_shows_an_empty_log() -> None:
    with penstock.Realm() as realm:
        shown = CliRunner().invoke(app, ["audit"], env={"PENSTOCK_URL": realm.listen()})

    assert shown.stdout == "no acts yet\n"
    assert "without authentication" in shown.stderr
