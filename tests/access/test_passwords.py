"""New passwords, and changing one's own; who is not known is asked like who is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.connection.connection import RealmConnection
from penstock_core.access.rights import Principal
from penstock_core.api.access import (
    BeginPassword,
    PasswordChallenge,
    SetPassword,
    password_change_message,
)
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    IllegalState,
    InvalidArgument,
    SignInLocked,
)
from penstock_core.vocabulary.ports import inline
from penstock_core.wire.scram import is_proven, proof_of, verifier
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings.loading import load
from penstock_server.storage.memory import InMemory
from tests.access.realms import QUICK
from tests.asking import ask, on_its_loop
from tests.loops import on_a_loop


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    settings = QUICK | {"access__password_length_min": 6, "access__lockout_failures": 3}
    with penstock.Realm(access__mode="mandatory", **settings) as realm:
        with realm.connect() as session:
            session.access.create_user("alice", "secret")
            session.access.grant("alice@*", "access")
        yield realm


def connected(realm: penstock.Realm, password: str) -> penstock.Session:
    return penstock.connect(realm.listen().replace("://", f"://alice:{password}@"))


def test_new_passwords_are_kept_slowly_and_have_a_least_length_unless_told_otherwise() -> None:
    access = load().access

    assert (access.password_rounds, access.password_length_min) == (600_000, 8)


def test_a_short_password_is_refused_by_client_and_realm(realm: penstock.Realm) -> None:
    message = (
        r"the password has 5 characters; it must have at least 6 \(access.password_length_min\)"
    )
    with realm.connect() as session:
        with pytest.raises(InvalidArgument, match=message):
            session.access.create_user("bob", "short")
        with pytest.raises(InvalidArgument, match=message):
            session.access.set_password("alice", "short")
        assert [user.name for user in session.access.users()] == ["admin", "alice"]

    with pytest.raises(InvalidArgument, match=message):
        realm.loop.call(realm.access.accounts.create_user("bob", "short"))


def test_changing_ones_password_requires_the_old_one(realm: penstock.Realm) -> None:
    with connected(realm, "secret") as session:
        for wrong in (None, "wrong!"):
            with pytest.raises(AuthenticationFailed, match="the old password is missing or wrong"):
                session.access.set_password("alice", "another", wrong)
        session.access.set_password("alice", "another", "secret")

    with pytest.raises(AuthenticationFailed):
        connected(realm, "secret")
    with connected(realm, "another") as session:
        assert session.access.me().user == "alice"


def test_an_administrator_needs_the_old_password_only_for_themselves(
    realm: penstock.Realm,
) -> None:
    url = realm.listen().replace("://", f"://admin:{realm.access.first_password}@")
    with penstock.connect(url) as session:
        session.access.set_password("alice", "another")
        with pytest.raises(AuthenticationFailed):
            session.access.set_password("admin", "another")
        session.access.set_password("admin", "another", realm.access.first_password)


def test_guesses_of_the_old_password_in_a_session_lock_like_sign_ins(
    realm: penstock.Realm,
) -> None:
    with connected(realm, "secret") as session:
        for _ in range(3):
            with pytest.raises(AuthenticationFailed):
                session.access.set_password("alice", "another", "guess!")
        with pytest.raises(SignInLocked):
            session.access.set_password("alice", "another", "secret")


def test_a_proof_is_of_one_change_and_good_once(realm: penstock.Realm) -> None:
    with connected(realm, "secret") as session:
        made = verifier("another", b"s" * 16, 4_096)

        async def prove(connection: RealmConnection) -> SetPassword:
            begun = await connection.ask(BeginPassword(), PasswordChallenge)
            message = password_change_message(begun.nonce, "alice", made)
            proof = proof_of("secret", begun.salt, begun.rounds, message=message)
            return SetPassword("alice", made, proof)

        change = on_its_loop(session, prove)
        forged = verifier("attacker", b"s" * 16, 4_096)
        with pytest.raises(AuthenticationFailed):  # another change than was proven
            ask(session, SetPassword("alice", forged, change.proof))
        with pytest.raises(AuthenticationFailed):  # its challenge has been used
            ask(session, change)


@pytest.mark.parametrize("proof", [b"", b"x", b"x" * 31, b"x" * 32, b"x" * 33, b"\0" * 32])
def test_an_invalid_proof_is_refused(proof: bytes) -> None:
    assert not is_proven(proof, verifier("secret", b"s" * 16, 4_096), b"said")


def test_a_user_signed_in_without_a_password_cannot_change_it(realm: penstock.Realm) -> None:
    by_token = Principal("alice", "h", proof="token")

    with pytest.raises(IllegalState, match="signed in with a password"):
        realm.access.own_verifier(by_token)
    assert not realm.access.is_own_password(by_token, "alice")


@on_a_loop
async def test_an_unknown_user_gets_constant_rounds_that_real_users_have() -> None:
    stores, clock = InMemory(), SystemClock()

    async def accounts(rounds: int) -> Accounts:
        made = Accounts(stores.registry, clock, inline, rounds=rounds)
        await made.load()
        return made

    def decoy_rounds(of: Accounts) -> list[int]:
        return [of.decoy(f"nobody-{number}").rounds for number in range(60)]

    first = await accounts(5_000)
    empty = decoy_rounds(first)
    await first.create_user("old", "secret")
    second = await accounts(6_000)
    only_old = decoy_rounds(second)
    await second.create_user("new", "secret")
    mixed = decoy_rounds(await accounts(7_000))

    assert set(empty) == {5_000}
    assert set(only_old) == {5_000}  # nobody has 6,000 yet: it would tell who is made up
    assert set(mixed) == {5_000, 6_000}
    assert 10 < mixed.count(5_000) < 50


def test_a_made_up_user_keeps_its_rounds_and_salt_over_a_restart(tmp_path: Path) -> None:
    settings = QUICK | {"access__mode": "mandatory"}
    with penstock.Realm(tmp_path, **settings) as realm:
        before = realm.access.accounts.decoy("nobody")
    with penstock.Realm(tmp_path, **settings) as realm:
        after = realm.access.accounts.decoy("nobody")

    assert (before.salt, before.rounds) == (after.salt, after.rounds)
