"""Tokens for users with passwords: how clients get them, what they open, and how they end."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from pyiceberg.exceptions import OAuthError

import penstock
from packages.lakehouse.tests.clients import PATH, catalog, connected_duckdb
from packages.server.tests.frontends.http.asking import Reply, Web
from packages.server.tests.frontends.http.known import ANN, Known
from penstock_core.access.lockout import LockoutRules
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AuthenticationFailed, InsecureConnection
from penstock_server.runtime.access.access import TOKEN_S, TOKENS_OF_USER_MAX, AccessControl
from tests.loops import on_a_loop

pytestmark = [pytest.mark.spec("B6"), pytest.mark.slow]
TOKENS = "iceberg/v1/oauth/tokens"
TABLES = "iceberg/v1/namespaces/channels/tables"
FORM = "application/x-www-form-urlencoded"


class Users(NamedTuple):
    """A realm with the user ann, who may read the channel ``open`` but not ``secret``."""

    realm: penstock.Realm
    url: str
    admin: Known


@pytest.fixture
def users() -> Iterator[Users]:
    with (
        penstock.Realm(
            access__mode="mandatory", access__failure_delay_s=0.01, access__password_rounds=10_000
        ) as realm,
        realm.connect() as session,
    ):
        url = realm.listen_http()
        session.channels.create("open").publish(b"x", properties={"n": 1})
        session.channels.create("secret").publish(b"secret")
        admin = Known(url, "admin", realm.access.first_password)
        admin.send("POST", "users", {"name": "ann", "password": ANN})
        for grant in (
            {"kind": "realm", "rights": ["access"]},
            {"kind": "channel", "name": "open", "rights": ["subscribe"]},
        ):
            admin.send("POST", "acl/grant", grant | {"subject": "ann@*"})
        yield Users(realm, url, admin)


def request_token(url: str, authorization: str = "", *, kind: str = FORM, **fields: str) -> Reply:
    sent = {"content-type": kind, "authorization": authorization}
    return Web(url).ask("POST", TOKENS, urlencode(fields).encode(), headers=sent)


def token_of(url: str, user: str = "ann", password: str = ANN) -> str:
    reply = request_token(
        url, grant_type="client_credentials", client_id=user, client_secret=password
    )
    assert reply.status == 200, reply.data
    return str(reply.document["access_token"])


def with_token(url: str, path: str, token: str, method: str = "GET") -> Reply:
    return Web(url).ask(method, path, headers={"authorization": f"Bearer {token}"})


def test_duckdb_and_pyiceberg_sign_in_with_a_password(users: Users) -> None:
    server = f"{users.url}{PATH}/v1/oauth/tokens"
    duck = connected_duckdb(
        users.url, f"CLIENT_ID 'ann', CLIENT_SECRET '{ANN}', OAUTH2_SERVER_URI '{server}'"
    )
    assert duck.sql("SELECT n FROM realm.channels.open").fetchall() == [(1,)]
    duck.close()
    realm = catalog(users.url, credential=f"ann:{ANN}", **{"oauth2-server-uri": server})
    assert realm.list_tables("channels") == [("channels", "open")]
    assert realm.load_table(("channels", "open")).scan().to_arrow()["n"].to_pylist() == [1]
    with pytest.raises(OAuthError, match="invalid_client"):
        catalog(users.url, credential="ann:wrong", **{"oauth2-server-uri": server})


def test_a_token_is_asked_for_as_oauth_defines_it(users: Users) -> None:
    good = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": ANN}
    reply = request_token(users.url, "", **good, scope="catalog", resource="ignored")
    assert reply.headers["cache-control"] == "no-store"
    assert reply.document | {"access_token": ""} == {
        "access_token": "",
        "token_type": "bearer",
        "expires_in": TOKEN_S,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    secret = base64.b64encode(f"ann:{ANN}".encode()).decode()
    by_basic = request_token(users.url, f"Basic {secret}", grant_type=good["grant_type"])
    assert by_basic.status == 200

    exchange = "urn:ietf:params:oauth:grant-type:token-exchange"
    for wrong, status, code in (
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": exchange, "subject_token": "x"}, 400, "unsupported_grant_type"),
        ({"client_secret": ""}, 400, "invalid_request"),
        ({"client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "nobody"}, 401, "invalid_client"),
        ({"client_secret": "\ud7ff" * 50}, 401, "invalid_client"),
    ):
        refused = request_token(users.url, "", **(good | wrong))
        assert (refused.status, refused.document["error"]) == (status, code), wrong
        assert set(refused.document) == {"error", "error_description"}
    assert request_token(users.url, "", kind="application/json", **good).status == 415
    for body in (b"grant_type=a&grant_type=b", b"client_secret=%ff", b"\xff"):
        broken = Web(users.url).ask("POST", TOKENS, body, headers={"content-type": FORM})
        assert (broken.status, broken.document["error"]) == (400, "invalid_request")
    huge = Web(users.url).ask(
        "POST", TOKENS, b"a=" + b"x" * 200_000, headers={"content-type": FORM}
    )
    assert huge.status == 413
    assert Web(users.url).ask("GET", TOKENS).status == 405


def test_a_token_has_the_users_rights_at_the_time_of_use(users: Users) -> None:
    token = token_of(users.url)

    assert with_token(users.url, f"{TABLES}/open", token).status == 200
    assert with_token(users.url, f"{TABLES}/secret", token).status == 403
    change = {"kind": "channel", "name": "secret", "subject": "ann@*", "rights": ["subscribe"]}
    users.admin.send("POST", "acl/grant", change)
    assert with_token(users.url, f"{TABLES}/secret", token).status == 200
    users.admin.send("POST", "acl/revoke", change)
    assert with_token(users.url, f"{TABLES}/secret", token).status == 403


def test_a_token_opens_the_catalog_only(users: Users) -> None:
    token = token_of(users.url, "admin", users.realm.access.first_password)

    assert with_token(users.url, "iceberg/v1/config", token).status == 200
    for method, path in (
        ("GET", "users"),
        ("GET", "channels/open/events"),
        ("GET", "/metrics"),
        ("DELETE", "channels/open"),
    ):
        refused = with_token(users.url, path, token, method)
        assert (refused.status, refused.code) == (403, "access-denied"), path
    port = users.url.rpartition(":")[2]
    as_cookie = Web(users.url).ask(
        "GET", f"{TABLES}/open", headers={"cookie": f"penstock_session_{port}={token}"}
    )
    assert as_cookie.status == 401, "nor is it the cookie of a console session"


def test_a_token_ends_with_the_password_or_the_user(users: Users) -> None:
    for change in (
        ("POST", "users/ann/password", {"password": "another secret of ann"}),
        ("DELETE", "users/ann", None),
    ):
        password = ANN if change[0] == "POST" else "another secret of ann"
        token = token_of(users.url, "ann", password)
        assert with_token(users.url, f"{TABLES}/open", token).status == 200
        users.admin.send(*change)
        refused = with_token(users.url, f"{TABLES}/open", token)
        assert (refused.status, refused.document["error"]["type"]) == (
            401,
            "NotAuthorizedException",
        )


def test_forged_tokens_are_refused(users: Users) -> None:
    token = token_of(users.url)
    for forged in (token[:-1], token + "x", token.swapcase(), "x", "", "a.b.c"):
        assert with_token(users.url, f"{TABLES}/open", forged).status == 401, forged
    assert with_token(users.url, f"{TABLES}/open", token).status == 200


def test_guesses_of_a_password_lock_its_user_out(users: Users) -> None:
    guess = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": "wrong"}
    statuses = [
        request_token(users.url, "", **guess).status for _ in range(LockoutRules().failures + 1)
    ]

    assert statuses == [401] * LockoutRules().failures + [429]
    right = request_token(users.url, "", **(guess | {"client_secret": ANN}))
    assert (right.status, right.document["error"]) == (429, "temporarily_unavailable")
    assert int(right.headers["retry-after"]) > 0


def test_no_secret_is_logged_or_audited(users: Users, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = token_of(users.url)
    request_token(
        users.url, grant_type="client_credentials", client_id="ann", client_secret="a bad guess"
    )
    with_token(users.url, f"{TABLES}/secret", token)
    with_token(users.url, "users", token)
    with_token(users.url, "users", token[:-1])

    audited = b"".join(
        users.admin.ask("GET", "audit", kind=kind).data for kind in ("acts", "sign_ins", "refusals")
    )
    assert b"ann@" in audited
    for secret in (token, token[:-1], ANN, "a bad guess"):
        assert secret not in caplog.text
        assert secret.encode() not in audited


def test_a_realm_without_authentication_ignores_passwords_and_tokens(url: str) -> None:
    token = token_of(url, "anyone", "anything")

    assert with_token(url, TABLES, token).status == 200
    assert with_token(url, TABLES, "x").status == 200


class SetClock:
    """A clock that the test sets."""

    us = 1_000_000

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.us


@on_a_loop
async def test_a_token_ends_after_an_hour_and_a_user_has_a_bounded_number() -> None:
    clock = SetClock()
    control = AccessControl.off(clock)
    ann = Principal("ann", "pc")
    first = await control.issued_tokens.open(ann)
    clock.us += TOKEN_S * 1_000_000
    assert await control.issued_token(first.id, "laptop", secure=True) == Principal("ann", "laptop")

    tokens = [(await control.issued_tokens.open(ann)).id for _ in range(TOKENS_OF_USER_MAX)]
    assert len(control.issued_tokens) == TOKENS_OF_USER_MAX
    clock.us += TOKEN_S * 1_000_000 + 1
    assert control.issued_tokens.find(tokens[0]) is None
    with pytest.raises(AuthenticationFailed, match="not known here or has ended"):
        await control.issued_token(tokens[-1], "pc", secure=True)


@on_a_loop
async def test_a_token_is_refused_over_a_connection_that_others_can_read() -> None:
    control = AccessControl.off(SetClock())
    token = await control.issued_tokens.open(Principal("ann", "pc"))
    with pytest.raises(InsecureConnection):
        await control.issued_token(token.id, "192.0.2.7", secure=False)
