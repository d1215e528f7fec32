"""Sign-ins: passwords, modes and stored accounts (SEM A1, A4)."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

import penstock
from penstock_core.access.rights import RIGHTS
from penstock_core.api.access import CreateUser
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    IllegalState,
    InvalidArgument,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame
from penstock_core.wire.scram import verifier
from penstock_server.frontends.native.listener import check_exposed
from penstock_server.serving.lifecycle import show_first_password
from tests.access.realms import QUICK
from tests.asking import ask


def url_for(realm: penstock.Realm, who: str = "") -> str:
    return realm.listen().replace("://", f"://{who}@" if who else "://")


@pytest.mark.spec("A1")
def test_a_password_makes_a_principal_of_user_and_host(realm: penstock.Realm) -> None:
    with penstock.connect(url_for(realm, "alice:secret")) as session:
        me = session.access.me()

    assert (me.user, me.host, me.mode, me.realm) == ("alice", "127.0.0.1", "mandatory", ("access",))


@pytest.mark.spec("A4")
@pytest.mark.parametrize("who", ["alice:wrong", "nobody:secret", "alice", ""])
def test_a_mandatory_realm_requires_the_right_password(realm: penstock.Realm, who: str) -> None:
    with pytest.raises(AuthenticationFailed):
        penstock.connect(url_for(realm, who))


@pytest.mark.spec("A1")
def test_users_made_by_clients_have_as_many_rounds_as_the_realm_wants() -> None:
    with strict() as realm, realm.connect() as session:
        session.access.create_user("alice", "first")
        made = realm.access.accounts.verifier_of("alice")
        session.access.set_password("alice", "second")
        changed = realm.access.accounts.verifier_of("alice")

    assert made is not None
    assert changed is not None
    assert (made.rounds, changed.rounds) == (12_345, 12_345)
    assert made != changed


@pytest.mark.spec("A1")
def test_verifiers_of_fewer_rounds_than_the_realm_wants_are_refused() -> None:
    weak = verifier("secret", b"s" * 16, 4_096)
    with (
        strict() as realm,
        realm.connect() as session,
        pytest.raises(InvalidArgument, match=r"4096 rounds; allowed are 12345 \(access.password_r"),
    ):
        ask(session, CreateUser("alice", weak))


def strict() -> penstock.Realm:
    return penstock.Realm(
        access__mode="mandatory", access__password_rounds=12_345, access__password_length_min=1
    )


@pytest.mark.spec("A4")
def test_an_optional_realm_accepts_anonymous_clients() -> None:
    with penstock.Realm(access__mode="optional", **QUICK) as realm, realm.connect() as trusted:
        with pytest.raises(AccessDenied, match=r"anonymous@127.0.0.1 lacks 'access'"):
            penstock.connect(url_for(realm, "admin"))

        trusted.access.grant("anonymous@*", "access")
        with penstock.connect(url_for(realm, "admin")) as session:
            me = session.access.me()

        with pytest.raises(AuthenticationFailed):
            penstock.connect(url_for(realm, "admin:wrong"))

    assert (me.user, me.realm) == ("anonymous", ("access",))


@pytest.mark.spec("A4")
def test_a_realm_without_authentication_trusts_clients_and_listens_locally_only() -> None:
    with penstock.Realm() as realm, penstock.connect(url_for(realm, "alice:any")) as session:
        me = session.access.me()
        with pytest.raises(IllegalState, match="has no authentication"):
            session.access.create_user("bob", "secret")
        with pytest.raises(InvalidArgument, match="authentication is off"):
            realm.listen("0.0.0.0")

    assert (me.user, me.mode, {*me.realm}) == ("alice", "off", {*RIGHTS["realm"]})


@pytest.mark.spec("A4")
def test_a_realm_with_authentication_may_listen_everywhere() -> None:
    check_exposed("0.0.0.0", "mandatory")
    check_exposed("::", "optional")
    for host in ("0.0.0.0", "192.0.2.1", "example.com"):
        with pytest.raises(InvalidArgument, match=r"access\.mode"):
            check_exposed(host, "off")


def test_the_first_administrator_is_made_once(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path, access__mode="mandatory", **QUICK) as realm:
        password = realm.access.first_password
        assert len(password) == 20
        with penstock.connect(url_for(realm, f"admin:{password}")) as session:
            assert "full" in session.access.me().realm

    with penstock.Realm(tmp_path, access__mode="mandatory", **QUICK) as realm:
        assert realm.access.first_password == ""
        with penstock.connect(url_for(realm, f"admin:{password}")) as session:
            assert session.access.me().user == "admin"


def test_users_groups_rights_and_audit_survive_a_restart(tmp_path: Path) -> None:
    with (
        penstock.Realm(tmp_path, access__mode="mandatory", **QUICK) as realm,
        realm.connect() as session,
    ):
        session.channels.create("orders")
        session.access.create_user("alice", "open sesame")
        session.access.create_group("ops", ["alice", "bob"])
        session.access.grant("group:ops", "access")
        session.access.grant("group:ops", "publish", channel="orders")
        accounts = (session.access.users(), session.access.groups())
        newest = session.access.audit(1)[0]

    with penstock.Realm(tmp_path, access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            assert (session.access.users(), session.access.groups()) == accounts
            assert session.access.audit(1)[0] == newest
            entries = session.access.entries(channel="orders").entries
            assert [(entry.subject, entry.rights) for entry in entries] == [
                ("group:ops", ("publish",))
            ]
        with penstock.connect(url_for(realm, "alice:open%20sesame")) as session:
            session.channels.get("orders").publish(b"x")

    assert b"open sesame" not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_changed_password_counts_at_once(realm: penstock.Realm) -> None:
    with penstock.connect(url_for(realm, "alice:secret")) as session:
        session.access.set_password("alice", "another", "secret")
        session.info()

    with pytest.raises(AuthenticationFailed):
        penstock.connect(url_for(realm, "alice:secret"))
    with penstock.connect(url_for(realm, "alice:another")) as session:
        assert session.access.me().user == "alice"


def test_a_deleted_user_cannot_sign_in(realm: penstock.Realm) -> None:
    with realm.connect() as trusted:
        with penstock.connect(url_for(realm, "alice:secret")) as session:
            session.info()
            trusted.access.delete_user("alice")
            with pytest.raises(AuthenticationFailed):
                session.info()
        assert [user.name for user in trusted.access.users()] == ["admin"]
        with pytest.raises(IllegalState, match="the last user"):
            trusted.access.delete_user("admin")


def test_names_that_clash_or_miss_have_their_own_errors(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        access = session.access
        access.create_group("ops")
        with pytest.raises(NameAlreadyBound):
            access.create_user("alice", "x")
        with pytest.raises(NameAlreadyBound):
            access.create_group("ops")
        for missing in (
            lambda: access.delete_user("x"),
            lambda: access.set_password("x", "y"),
            lambda: access.delete_group("x"),
            lambda: access.change_group("x", add=["y"]),
            lambda: access.grant("alice@*", "publish", channel="nothing"),
        ):
            with pytest.raises(NameDoesNotExist):
                missing()
        for wrong in (
            lambda: access.create_user("anonymous", "x"),
            lambda: access.create_user("a b", "x"),
            lambda: access.create_user("bob", ""),
            lambda: access.grant("alice", "access"),
            lambda: access.grant("alice@*", "publish"),
            lambda: access.grant("alice@*"),
            lambda: access.entries(channel="a", queue="b"),
        ):
            with pytest.raises(InvalidArgument):
                wrong()


def test_a_session_of_this_process_may_be_for_a_user(realm: penstock.Realm) -> None:
    with realm.connect(user="alice") as session:
        assert session.access.me().realm == ("access",)
        with pytest.raises(AccessDenied, match="'channels' on the realm"):
            session.channels.create("orders")
    with realm.connect() as session:
        session.channels.create("orders")


def test_secrets_come_from_the_environment(
    realm: penstock.Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_USER", "alice")
    monkeypatch.setenv("PENSTOCK_PASSWORD", "secret")

    with penstock.connect(url_for(realm)) as session:
        assert session.access.me().user == "alice"
    with pytest.raises(AuthenticationFailed):
        penstock.connect(url_for(realm, "alice:wrong"))


def test_a_connection_with_an_invalid_sign_in_gets_an_error_and_ends(realm: penstock.Realm) -> None:
    port = realm.listen().rpartition(":")[2]
    for hello in (
        wire.Hello("c", "s", "alice", token="", mechanism="LOGIN", data=b"\0alice\0secret"),
        wire.Hello("c", "s", "alice", token="", mechanism="PLAIN", data=b"\0alice\0wrong"),
        wire.Hello("c", "s", "alice", token="", mechanism="PLAIN", data=b"secret"),
        wire.Hello("c", "s", "alice", token="", mechanism="SCRAM-SHA-256", data=b"nonsense"),
        wire.Hello("c", "s", "alice", token="no.token.here"),
    ):
        with socket.create_connection(("127.0.0.1", int(port))) as plain:
            plain.settimeout(10)
            plain.sendall(_greeting(hello))
            assert b"authentication-failed" in _all_of(plain), hello


def _greeting(hello: wire.Hello) -> bytes:
    return PREFACE + b"".join(map(bytes, frame(wire.encode(hello))))


def _all_of(plain: socket.socket) -> bytes:
    received = b""
    while part := plain.recv(65_536):
        received += part
    return received


def test_the_first_password_is_a_line_of_json_where_the_log_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        password = realm.access.first_password
        show_first_password(realm.running, as_json=True)

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "event": "access.first_administrator",
        "user": "admin",
        "password": password,
    }


def test_the_first_password_is_shown_once_and_not_in_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        password = realm.access.first_password
        show_first_password(realm.running)
        first = capsys.readouterr()
        show_first_password(realm.running)
        again = capsys.readouterr()

    assert f"user admin, password {password}\n" in first.out
    assert password not in first.err
    assert (again.out, realm.access.first_password) == ("", "")
