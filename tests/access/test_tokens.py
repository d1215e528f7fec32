"""Bearer tokens: whose are taken, and what they say."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

import penstock
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    InvalidArgument,
    PenstockError,
    Unavailable,
)
from penstock_server.runtime.access.tokens import TokenRules, Tokens, fetched
from tests.loops import on_a_loop

NOW_S = 1_800_000_000
RULES = TokenRules("keys.json", "https://sso.example", "penstock", groups_claim="realm.roles")
CLAIMS = {
    "iss": "https://sso.example",
    "aud": "penstock",
    "sub": "alice",
    "exp": NOW_S + 60,
    "realm": {"roles": ["ops", 7]},
}
KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


class FixedClock:
    def __init__(self) -> None:
        self.us = NOW_S * 1_000_000

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.now_us()


class Provider:
    """A key set that may change, and may be away."""

    def __init__(self) -> None:
        self.keys = {"one": KEY}
        self.is_away = False
        self.fetch_count = 0

    def fetch(self, where: str) -> bytes:
        self.fetch_count += 1
        if self.is_away:
            raise Unavailable(f"{where} does not answer")
        return key_set(self.keys)


def key_set(keys: dict[str, ec.EllipticCurvePrivateKey]) -> bytes:
    missing = [
        {**json.loads(ECAlgorithm.to_jwk(key.public_key())), "kid": name, "alg": "ES256"}
        for name, key in keys.items()
    ]
    return json.dumps({"keys": missing}).encode()


def signed(key: Any = KEY, kid: str | None = "one", algorithm: str = "ES256", **claims: Any) -> str:
    present_claims = {
        name: value for name, value in {**CLAIMS, **claims}.items() if value is not None
    }
    headers = {"kid": kid} if kid is not None else {}
    return jwt.encode(present_claims, key, algorithm=algorithm, headers=headers)


async def inline(call: Callable[[], Any]) -> Any:
    return call()


def tokens(
    provider: Provider, clock: FixedClock | None = None, rules: TokenRules = RULES
) -> Tokens:
    return Tokens(rules, provider.fetch, clock or FixedClock(), offload=inline)


def who(text: str, taken: Tokens | None = None) -> Principal:
    return asyncio.run((taken or tokens(Provider())).principal(text, "10.0.0.1"))


def test_a_good_token_names_user_and_groups_until_it_ends() -> None:
    assert who(signed()) == Principal(
        "alice",
        "10.0.0.1",
        frozenset({"ops"}),
        proof="token",
        until_us=(NOW_S + 90) * 1_000_000,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (signed(iss="https://elsewhere"), "issuer"),
        (signed(aud="something else"), "[Aa]udience"),
        (signed(aud=None), "aud"),
        (signed(exp=NOW_S - 60), "expired"),
        (signed(exp=None), "exp"),
        (signed(exp="soon"), "refused|not a time"),
        (signed(nbf=NOW_S + 3_600), "not valid yet"),
        (signed(OTHER), "[Ss]ignature"),
        (signed(kid="two"), "that the issuer does not publish"),
        (signed(sub=None), "does not name a user"),
        (signed(sub="anonymous"), "does not name a user"),
        (signed(sub="a b"), "not a valid name of a user"),
        ("not a token", "not a token"),
        ("", "not a token"),
        (
            jwt.encode(CLAIMS, "a shared secret of some length!!", "HS256", headers={"kid": "one"}),
            "refused",
        ),
        (jwt.encode(CLAIMS, "", "none", headers={"kid": "one"}), "refused"),
    ],
)
def test_a_token_that_is_not_good_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(AuthenticationFailed, match=why):
        who(text)


def test_a_key_that_is_new_at_the_provider_is_fetched_but_not_too_often() -> None:
    provider, clock = Provider(), FixedClock()
    checker = tokens(provider, clock)
    who(signed(), checker)
    provider.keys = {"one": KEY, "two": OTHER}
    with pytest.raises(AuthenticationFailed):
        who(signed(OTHER, "two"), checker)
    assert provider.fetch_count == 1

    clock.us += 20_000_000

    assert who(signed(OTHER, "two"), checker).user == "alice"
    who(signed(), checker)
    assert provider.fetch_count == 2


def test_an_unavailable_provider_matters_only_without_cached_keys() -> None:
    provider, clock = Provider(), FixedClock()
    checker = tokens(provider, clock)
    provider.is_away = True
    with pytest.raises(Unavailable):
        who(signed(), checker)

    provider.is_away = False
    checker.forget()
    who(signed(), checker)
    provider.is_away = True
    clock.us += 700_000_000

    assert who(signed(exp=NOW_S + 5_000), checker).user == "alice"


@on_a_loop
async def test_tokens_that_come_while_keys_are_fetched_wait_for_them() -> None:
    provider = Provider()

    async def slowly(call: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return call()

    checker = Tokens(RULES, provider.fetch, FixedClock(), offload=slowly)
    async with asyncio.TaskGroup() as tasks:
        pending = [tasks.create_task(checker.principal(signed(), "h")) for _ in range(3)]

    assert [task.result().user for task in pending] == ["alice"] * 3
    assert provider.fetch_count == 1


def test_an_unavailable_provider_is_not_requested_with_each_token() -> None:
    provider = Provider()
    provider.is_away = True
    checker = tokens(provider)

    for _ in range(2):
        with pytest.raises(Unavailable):
            who(signed(), checker)

    assert provider.fetch_count == 1


def test_a_token_without_a_key_id_means_the_only_key() -> None:
    provider = Provider()
    assert who(signed(kid=None), tokens(provider)).user == "alice"

    provider.keys = {"one": KEY, "two": OTHER}
    with pytest.raises(AuthenticationFailed):
        who(signed(kid=None), tokens(provider))


def test_groups_may_be_one_text() -> None:
    text = signed(realm={"roles": "ops dev"})

    assert who(text).groups == {"ops", "dev"}
    assert who(signed(realm=None)).groups == frozenset()


@pytest.mark.parametrize(
    "rules",
    [
        TokenRules("keys.json"),
        TokenRules("keys.json", "https://sso.example"),
        TokenRules("http://sso.example/keys", "https://sso.example", "penstock"),
        TokenRules("ftp://sso.example/keys", "https://sso.example", "penstock"),
    ],
)
def test_rules_that_accept_tokens_of_any_service_are_refused(rules: TokenRules) -> None:
    with pytest.raises(InvalidArgument, match=r"access\.token_"):
        tokens(Provider(), rules=rules)


def test_without_pyjwt_the_start_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jwt", None)

    with pytest.raises(InvalidArgument, match=r"pip install 'penstock-realm\[tokens\]'"):
        Tokens(RULES, Provider().fetch, FixedClock(), offload=inline)
    assert not Tokens(TokenRules(), Provider().fetch, FixedClock(), offload=inline).are_accepted


def test_a_realm_without_keys_takes_no_tokens() -> None:
    with pytest.raises(AuthenticationFailed, match="does not accept tokens"):
        who(signed(), tokens(Provider(), rules=TokenRules()))


def test_an_invalid_key_set_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        fetched(str(tmp_path / "missing.json"))
    (tmp_path / "keys.json").write_text("[]")
    rules = TokenRules(str(tmp_path / "keys.json"), "i", "a")

    with pytest.raises(Unavailable, match="not a JSON Web Key Set"):
        who(signed(), Tokens(rules, fetched, FixedClock(), offload=inline))


def test_a_client_signs_in_with_a_token_of_its_own_making(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": "r"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public]}))
    far = 4_000_000_000
    text = signed(key, "r", "RS256", exp=far, realm={"roles": ["ops"]})

    with penstock.Realm(
        access__mode="mandatory",
        access__token_keys=str(tmp_path / "keys.json"),
        access__token_issuer="https://sso.example",
        access__token_audience="penstock",
        access__token_groups_claim="realm.roles",
        access__failure_delay_s=0.0,
    ) as realm:
        with realm.connect() as trusted:
            trusted.access.grant("group:ops", "access")
        url = realm.listen()
        with penstock.connect(url, token=lambda: text) as session:
            me = session.access.me()
        with pytest.raises(AuthenticationFailed, match="token"):
            penstock.connect(url, token=f"{text}x")
        with realm.connect() as trusted:
            trusted.access.revoke("group:ops")
        with pytest.raises(AccessDenied):
            penstock.connect(url, token=text)

    assert (me.user, me.groups) == ("token:alice", ("ops",))


def test_a_token_is_not_sent_unencrypted() -> None:
    with pytest.raises(PenstockError, match="penstocks://"):
        penstock.connect("penstock://192.0.2.1:9", reconnect_timeout=0, token="t")


def rsa_key(bits: int, **more: Any) -> tuple[Any, dict[str, Any]]:
    key = rsa.generate_private_key(65_537, bits)
    return key, {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "alg": "RS256", **more}


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize(
    ("bits", "more", "why"),
    [
        (1_024, {}, "of 1024 bits; an RSA key has at least 2048"),
        (2_048, {"use": "enc"}, "not meant for signatures"),
        (2_048, {"key_ops": ["encrypt"]}, "not meant for signatures"),
    ],
)
def test_a_key_that_is_short_or_for_encryption_signs_nothing(
    bits: int, more: dict[str, Any], why: str
) -> None:
    key, fields = rsa_key(bits, kid="weak", **more)
    good = json.loads(key_set({"one": KEY}))["keys"]
    checker = Tokens(
        RULES,
        lambda _: json.dumps({"keys": [fields, *good]}).encode(),
        FixedClock(),
        offload=inline,
    )

    with pytest.raises(AuthenticationFailed, match=why):
        who(signed(key, "weak", "RS256"), checker)
    assert who(signed(), checker).user == "alice"


@pytest.mark.parametrize("more", [{}, {"use": "sig"}, {"key_ops": ["verify"]}])
def test_an_rsa_key_of_2048_bits_signs(more: dict[str, Any]) -> None:
    key, fields = rsa_key(2_048, kid="long", **more)
    checker = Tokens(
        RULES, lambda _: json.dumps({"keys": [fields]}).encode(), FixedClock(), offload=inline
    )

    assert who(signed(key, "long", "RS256"), checker).user == "alice"


def test_a_key_for_encryption_does_not_hide_one_for_signatures_of_its_id() -> None:
    _, encryption_fields = rsa_key(2_048, kid="one", use="enc")
    good = json.loads(key_set({"one": KEY}))["keys"]
    checker = Tokens(
        RULES,
        lambda _: json.dumps({"keys": [*good, encryption_fields]}).encode(),
        FixedClock(),
        offload=inline,
    )

    assert who(signed(), checker).user == "alice"


@pytest.mark.spec("A1")
def test_an_admin_of_tokens_is_not_the_realms(tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": "r"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public]}))
    text = signed(key, "r", "RS256", exp=4_000_000_000, sub="admin")

    with penstock.Realm(
        access__mode="mandatory",
        access__token_keys=str(tmp_path / "keys.json"),
        access__token_issuer="https://sso.example",
        access__token_audience="penstock",
        access__failure_delay_s=0.0,
    ) as realm:
        url = realm.listen()
        with pytest.raises(AccessDenied, match=r"token:admin@127\.0\.0\.1 lacks 'access'"):
            penstock.connect(url, token=text)
        with realm.connect() as trusted:
            trusted.access.grant("token:admin@*", "access")
            with pytest.raises(InvalidArgument, match="not a valid name of a user"):
                trusted.access.create_user("token:admin", "a long password")
        with penstock.connect(url, token=text) as session:
            assert session.access.me().realm == ("access",)
            with pytest.raises(AccessDenied):
                session.access.users()
