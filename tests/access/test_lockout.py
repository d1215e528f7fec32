"""Too many wrong passwords: who guesses waits, over every front end (SEM A4)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web
from penstock_core.vocabulary.errors import AuthenticationFailed, SignInLocked

WRONG, RIGHT = "alice:wrong", "alice:secret"


def realm_with(**settings: Any) -> penstock.Realm:
    realm = penstock.Realm(
        access__mode="mandatory",
        access__password_rounds=4_096,
        access__password_length_min=1,
        access__failure_delay_s=0.0,
        access__lockout_failures=3,
        **settings,
    )
    with realm.connect() as session:
        for user in ("alice", "bob"):
            session.access.create_user(user, "secret")
            session.access.grant(f"{user}@*", "access", "admin")
    return realm


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with realm_with() as realm:
        yield realm


def sign_in(realm: penstock.Realm, who: str) -> None:
    penstock.connect(realm.listen().replace("://", f"://{who}@")).close()


def guess(realm: penstock.Realm, who: str = WRONG, times: int = 3) -> None:
    for _ in range(times):
        with pytest.raises(AuthenticationFailed) as refused:
            sign_in(realm, who)
        assert not isinstance(refused.value, SignInLocked)


def basic(realm: penstock.Realm, who: str) -> Reply:
    secret = base64.b64encode(who.encode()).decode()
    return Web(realm.listen_http()).ask("GET", "me", headers={"authorization": f"Basic {secret}"})


@pytest.mark.spec("A4")
def test_after_too_many_wrong_passwords_the_right_one_has_to_wait(realm: penstock.Realm) -> None:
    guess(realm)

    with pytest.raises(SignInLocked, match=r"try again in (29|30) s"):
        sign_in(realm, RIGHT)
    sign_in(realm, "bob:secret")


@pytest.mark.spec("A4")
def test_a_lock_holds_over_http_and_says_how_long(realm: penstock.Realm) -> None:
    guess(realm, times=2)
    assert basic(realm, WRONG).status == 401

    refused = basic(realm, RIGHT)

    assert (refused.status, refused.code) == (429, "sign-in-locked")
    assert refused.headers["retry-after"] in ("29", "30")
    login = Web(realm.listen_http()).ask("POST", "login", {"user": "alice", "password": "secret"})
    assert login.code == "sign-in-locked"
    assert basic(realm, "bob:secret").status == 200


@pytest.mark.spec("A4")
def test_unknown_users_are_locked_like_others(realm: penstock.Realm) -> None:
    guess(realm, "nobody:wrong")

    with pytest.raises(SignInLocked):
        sign_in(realm, "nobody:wrong")


@pytest.mark.spec("A4")
def test_a_lock_is_in_the_audit_log_once(realm: penstock.Realm) -> None:
    guess(realm)
    for _ in range(3):
        assert basic(realm, WRONG).status == 429

    with realm.connect() as session:
        [lock] = [record for record in session.access.audit() if record.operation == "sign_in.lock"]
    assert (lock.principal, lock.target, lock.outcome) == ("realm", "alice", "done")
    assert lock.detail == {"what": "user", "host": "127.0.0.1", "seconds": 30.0}


def test_a_lock_ends_by_itself() -> None:
    with realm_with(access__lockout_s=0.05) as realm:
        guess(realm)
        waits = 0
        while True:
            try:
                sign_in(realm, RIGHT)
                break
            except SignInLocked:
                waits += 1
        with pytest.raises(AuthenticationFailed):
            sign_in(realm, WRONG)

    assert waits < 1_000


def test_locks_can_be_turned_off() -> None:
    with realm_with() as realm:
        guess(realm)
    with penstock.Realm(
        access__mode="mandatory", access__failure_delay_s=0.0, access__lockout_failures=0
    ) as realm:
        guess(realm, "admin:wrong", times=12)
