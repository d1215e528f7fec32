"""SCRAM-SHA-256: the exchange of RFC 7677, and messages that differ from it."""

from __future__ import annotations

import base64

import pytest

from penstock_core.api.access import Verifier
from penstock_core.vocabulary.errors import AuthenticationFailed, InvalidArgument
from penstock_core.wire.saslprep import prepared
from penstock_core.wire.scram import ScramClient, ScramServer, is_right, verifier

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture(scope="module")
def pencil_verifier() -> Verifier:
    return verifier("pencil", SALT, 4_096)


def test_a_client_says_what_the_rfc_has_it_say() -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE)

    assert client.first() == CLIENT_FIRST
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    client.check(SERVER_FINAL)


def test_a_server_says_what_the_rfc_has_it_say(pencil_verifier: Verifier) -> None:
    server = ScramServer(CLIENT_FIRST, SERVER_NONCE)

    assert server.user == "user"
    assert server.challenge(pencil_verifier) == SERVER_FIRST
    assert server.outcome(CLIENT_FINAL) == SERVER_FINAL


def test_the_record_tells_a_password_given_in_the_open(pencil_verifier: Verifier) -> None:
    assert is_right("pencil", pencil_verifier)
    assert not is_right("Pencil", pencil_verifier)
    assert not is_right("bell\x07", pencil_verifier)
    assert "pencil" not in repr(pencil_verifier)
    assert repr(pencil_verifier) == "Verifier(rounds=4096)"


def test_a_wrong_password_is_refused(pencil_verifier: Verifier) -> None:
    client = ScramClient("user", "pencils", CLIENT_NONCE)
    server = ScramServer(client.first(), SERVER_NONCE)
    final = client.final(server.challenge(pencil_verifier))

    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        server.outcome(final)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE)
    client.final(SERVER_FIRST)

    with pytest.raises(AuthenticationFailed, match="may be an impostor"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


def test_names_with_commas_and_equals_signs_arrive() -> None:
    client = ScramClient("a,b=c", "pencil", "nonce")

    assert client.first() == b"n,,n=a=2Cb=3Dc,r=nonce"
    assert ScramServer(client.first(), "more").user == "a,b=c"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,,m=more,n=user,r=x",
        b"n,,n=,r=x",
        b"n,,n=user,r=",
        b"n,,user",
    ],
)
def test_what_is_no_beginning_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramServer(first, SERVER_NONCE)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=4095"),
        SERVER_FIRST.replace(b"i=4096", b"i=99999999"),
        SERVER_FIRST.replace(b"i=4096", b"i=many"),
        SERVER_FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=?"),
        b"m=x," + SERVER_FIRST,
        b"e=unknown-user",
        b"nothing",
    ],
)
def test_a_challenge_that_is_none_is_not_answered(challenge: bytes) -> None:
    client = ScramClient("user", "pencil", CLIENT_NONCE)
    client.first()

    with pytest.raises(AuthenticationFailed):
        client.final(challenge)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        CLIENT_FINAL.replace(b"c=biws", b"c=eSws"),
        CLIENT_FINAL.replace(b"r=rOpr", b"r=sOpr"),
        CLIENT_FINAL.replace(b"p=dHzb", b"p=eHzb"),
        CLIENT_FINAL.replace(b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p="),
        CLIENT_FINAL.replace(b",p=", b",q="),
    ],
)
def test_a_proof_that_is_none_is_refused(pencil_verifier: Verifier, final: bytes) -> None:
    server = ScramServer(CLIENT_FIRST, SERVER_NONCE)
    server.challenge(pencil_verifier)

    with pytest.raises(AuthenticationFailed):
        server.outcome(final)


def test_an_empty_password_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        verifier("", SALT, 4_096)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_text_is_prepared_as_rfc_4013_has_it(text: str, expected: str) -> None:
    assert prepared(text) == expected


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0628", "\ue000"])
def test_what_rfc_4013_prohibits_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        prepared(text)
