"""Bearer tokens: JWTs that an identity provider has signed, such as those of OpenID Connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from penstock_core.access.rights import ANONYMOUS, Principal, checked_name
from penstock_core.loggers import logger
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    InvalidArgument,
    PenstockError,
    Unavailable,
)
from penstock_core.vocabulary.ports import Clock, Offload
from penstock_core.vocabulary.uris import shown, without_secrets

Fetch = Callable[[str], bytes]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Signatures by a private key only: a shared secret could be used to make tokens here."""
LEEWAY_S = 30
"""Seconds by which the provider's clock may differ."""
FRESH_S = 600
"""Seconds for which fetched keys are used."""
RETRY_S = 15
"""Seconds, at least, between two fetches that unknown keys cause."""
GROUPS_MAX = 1_000
FETCH_TIMEOUT_S = 10.0
KEYS_BYTES_MAX = 1 << 20
RSA_BITS_MIN = 2_048
"""Shorter ones can be broken."""

_log = logger("penstock.access")


class TokenRules(Struct, frozen=True):
    """Which tokens are accepted, and what they must contain."""

    keys: str = ""
    """File or https URL of a JSON Web Key Set; empty: no tokens."""
    issuer: str = ""
    audience: str = ""
    user_claim: str = "sub"
    groups_claim: str = "groups"
    """Dots lead into objects: ``realm_access.roles``."""


class Tokens:
    def __init__(self, rules: TokenRules, fetch: Fetch, clock: Clock, offload: Offload) -> None:
        """Raises ``InvalidArgument`` for rules under which any token would do, and where what
        checks signatures is not installed."""
        if rules.keys and not (rules.issuer and rules.audience):
            raise InvalidArgument(
                "access.token_keys needs access.token_issuer and access.token_audience: without "
                "them a token issued for another service would be accepted"
            )
        _check_url(rules.keys)
        if rules.keys and not _is_installed():
            raise InvalidArgument(
                "access.token_keys needs PyJWT, which is not installed here: pip install "
                "'penstock-realm[tokens]'"
            )
        self._rules = rules
        self._fetch = fetch
        self._clock = clock
        self._offload = offload
        self._keys: Mapping[str, Any] = {}
        self._refused: Mapping[str, str] = {}
        """Keys that are in the set and not used, and why."""
        self._fetched_us = 0
        self._tried_us = 0
        self._fetching = asyncio.Lock()

    @property
    def are_taken(self) -> bool:
        return bool(self._rules.keys)

    def forget(self) -> None:
        """Fetch the keys anew for the next token."""
        self._fetched_us = self._tried_us = 0

    async def principal(self, text: str, host: str) -> Principal:
        """The principal of a token. Raises ``AuthenticationFailed``, which says what is wrong with
        it, and ``Unavailable`` while the keys cannot be fetched."""
        if not self.are_taken:
            raise AuthenticationFailed("this realm does not accept tokens; sign in with a password")
        key_id = await self._offload(lambda: _key_id(text))
        key = await self._key(key_id)
        claims = await self._offload(lambda: self._claims(text, key))
        return self._who(claims, host)

    # --- keys ----------------------------------------------------------------------------

    async def _key(self, key_id: str) -> Any:
        if not (self._fetching.locked() and key_id in self._keys):
            async with self._fetching:  # all that need a new key wait for the same answer
                await self._look_for(key_id)
        if (reason := self._refused.get(key_id)) is not None:
            raise AuthenticationFailed(f"the token is signed with a key ({key_id!r}) {reason}")
        if not self._keys:
            raise Unavailable("the keys for tokens could not be fetched; try again in a moment")
        key = self._keys.get(key_id) or (None if key_id else self._only())
        if key is None:
            raise AuthenticationFailed(
                f"the token is signed with a key ({key_id!r}) that the issuer does not publish"
            )
        return key

    async def _look_for(self, key_id: str) -> None:
        now_us = self._clock.now_us()
        is_stale = now_us - self._fetched_us > FRESH_S * 1_000_000
        may_try = now_us - self._tried_us > RETRY_S * 1_000_000
        if (is_stale or key_id not in self._keys) and may_try:
            self._tried_us = now_us
            await self._refresh(now_us)

    def _only(self) -> Any:
        """A token without a key id means the only key there is."""
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refresh(self, now_us: int) -> None:
        try:
            found: _Keys = await self._offload(lambda: _keys(self._fetch(self._rules.keys)))
        except PenstockError as error:
            if not self._keys:
                raise
            _log.warning("access.keys_not_fetched", reason=str(error))  # the old keys stay valid
        else:
            self._keys, self._refused, self._fetched_us = found.good, found.refused, now_us
            for key_id, reason in found.refused.items():
                _log.warning("access.key_refused", key=key_id, reason=reason)

    # --- claims --------------------------------------------------------------------------

    def _claims(self, text: str, key: Any) -> dict[str, Any]:
        import jwt

        try:
            return jwt.decode(
                text,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                # Times are checked below, with the realm's own clock.
                options={
                    "require": ["exp"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise AuthenticationFailed(f"the token is refused: {error}") from error

    def _who(self, claims: Mapping[str, Any], host: str) -> Principal:
        until_us = self._checked_times(claims)
        rules = self._rules
        user = _claim(claims, rules.user_claim)
        if not isinstance(user, str) or user == ANONYMOUS:
            raise AuthenticationFailed(f"the token names no user: claim {rules.user_claim!r}")
        found = _claim(claims, rules.groups_claim)
        groups = found.split() if isinstance(found, str) else found
        if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            groups = []
        named = frozenset(each for each in groups if isinstance(each, str))
        try:
            name = checked_name(user, "user")
        except InvalidArgument as error:
            raise AuthenticationFailed(f"the token is refused: {error}") from error
        return Principal(name, host, named, proof="token", until_us=until_us)

    def _checked_times(self, claims: Mapping[str, Any]) -> int:
        now_us, leeway_us = self._clock.now_us(), LEEWAY_S * 1_000_000
        until_us = _time_us(claims, "exp") + leeway_us
        if now_us > until_us:
            raise AuthenticationFailed("the token has expired; get a new one")
        if "nbf" in claims and now_us < _time_us(claims, "nbf") - leeway_us:
            raise AuthenticationFailed("the token is not valid yet")
        return until_us


def fetched(where: str) -> bytes:
    """The keys in a file or behind a URL; for a thread of its own. Raises ``Unavailable``."""
    import urllib.request
    from http.client import HTTPException

    try:
        if "://" not in where:
            with open(where, "rb") as file:
                return file.read(KEYS_BYTES_MAX)
        with urllib.request.urlopen(where, timeout=FETCH_TIMEOUT_S) as answer:
            _check_url(answer.url)  # the URL after redirects
            found: bytes = answer.read(KEYS_BYTES_MAX)
            return found
    except (OSError, ValueError, HTTPException) as error:
        why = without_secrets(str(error), where)
        raise Unavailable(
            f"the keys for tokens cannot be read from {shown(where)}: {why}"
        ) from None


def _check_url(where: str) -> None:
    """Raises ``InvalidArgument`` for keys that anybody on the way could exchange."""
    if "://" in where and "@" in where:
        raise InvalidArgument(
            f"access.token_keys is {shown(where)!r}: keys are fetched without a user and password; "
            f"leave out what is before the @"
        )
    parts = urlsplit(where)
    is_near = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if "://" in where and parts.scheme != "https" and not is_near:
        raise InvalidArgument(
            f"access.token_keys is {shown(where)!r}: give a file or an https URL; "
            f"keys fetched over "
            f"plain http could be forged"
        )


def _is_installed() -> bool:
    return find_spec("jwt") is not None


def _key_id(text: str) -> str:
    import jwt

    try:
        header = jwt.get_unverified_header(text)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise AuthenticationFailed(f"this is not a token: {error}") from error
    return str(header.get("kid", ""))


class _KeySet(Struct):
    keys: list[dict[str, Any]]


class _Keys(NamedTuple):
    """A set of keys, by id."""

    good: dict[str, Any]
    refused: dict[str, str]


def _keys(document: bytes) -> _Keys:
    """The keys in a document. Raises ``Unavailable`` if it is not a set of keys."""
    key_set = decode_json(
        document,
        _KeySet,
        whole="the document",
        refuse=lambda why: Unavailable(f"the keys for tokens are not a JSON Web Key Set: {why}"),
    )
    found = _Keys({}, {})
    for each in key_set.keys:
        key, reason = _usable(each)
        name = str(each.get("kid") or "")
        if key is not None:
            found.good[name] = key
        elif reason:
            found.refused[name] = reason
    for name in found.good:  # a key for encryption may have the same id as one for signatures
        found.refused.pop(name, None)
    if not found.good and not found.refused:
        raise Unavailable(
            "the keys for tokens are not a JSON Web Key Set: none of them can be used"
        )
    return found


def _usable(said: Mapping[str, Any]) -> tuple[Any, str]:
    """A key that signatures are checked with; else why it is none, empty where it is of a kind
    that is not known here."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    operations = said.get("key_ops")
    if said.get("use", "sig") != "sig" or (operations is not None and "verify" not in operations):
        return None, "that is not meant for signatures"
    try:
        key = jwt.PyJWK.from_dict(dict(said))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError):
        return None, ""
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS_MIN:
        return None, f"of {key.key.key_size} bits; an RSA key has at least {RSA_BITS_MIN}"
    return key, ""


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    if path in claims:  # the name of a claim may have dots
        return claims[path]
    at: Any = claims
    for part in path.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _time_us(claims: Mapping[str, Any], name: str) -> int:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise AuthenticationFailed(f"the token's {name} is not a time: {value!r}")
    return int(value * 1_000_000)
