"""Bearer tokens: JWTs signed by an identity provider, such as those of OpenID Connect."""

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
from penstock_core.vocabulary.nesting import check_json_nesting
from penstock_core.vocabulary.ports import Clock, Offload
from penstock_core.vocabulary.uris import shown, without_secrets

Fetch = Callable[[str], bytes]

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Accepted signature algorithms. All use a private key: if provider and realm shared a secret, the
realm could forge the provider's tokens."""
LEEWAY_S = 30
"""Tolerated difference between the clocks of provider and realm in seconds."""
FRESH_S = 600
"""Lifetime of fetched keys in seconds."""
RETRY_S = 15
"""Smallest time in seconds between two fetches of keys, even if many tokens with unknown keys
arrive."""
GROUPS_MAX = 1_000
"""Largest number of groups in a token; a longer list is ignored."""
FETCH_TIMEOUT_S = 10.0
KEYS_BYTES_MAX = 1 << 20
"""Number of bytes that are read of a key set."""
RSA_BITS_MIN = 2_048
"""Smallest number of bits of an accepted RSA key; shorter keys can be broken."""

_log = logger("penstock.access")


class TokenRules(Struct, frozen=True):
    """The settings of tokens: which provider's tokens are accepted, and which claims they must
    contain."""

    keys: str = ""
    """File or https URL of a JSON Web Key Set; if empty, tokens are refused."""
    issuer: str = ""
    audience: str = ""
    user_claim: str = "sub"
    groups_claim: str = "groups"
    """Name of the claim with the groups. Dots select fields of nested objects:
    ``realm_access.roles``."""


class Tokens:
    """Checks tokens, with keys that are fetched when needed and cached."""

    def __init__(self, rules: TokenRules, fetch: Fetch, clock: Clock, offload: Offload) -> None:
        """Raise ``InvalidArgument`` if the rules would accept tokens of any service, or if the
        library that checks signatures is not installed."""
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
        """Keys of the set that cannot be used, with the reasons."""
        self._fetched_us = 0
        """Time of the last successful fetch in microseconds."""
        self._tried_us = 0
        """Time of the last attempt to fetch in microseconds."""
        self._fetching = asyncio.Lock()

    @property
    def are_accepted(self) -> bool:
        """Whether the realm accepts tokens."""
        return bool(self._rules.keys)

    def forget(self) -> None:
        """Fetch the keys again for the next token."""
        self._fetched_us = self._tried_us = 0

    async def principal(self, text: str, host: str) -> Principal:
        """Return the principal of a token. Raises ``AuthenticationFailed`` with the fault of the
        token, and ``Unavailable`` while the keys cannot be fetched."""
        if not self.are_accepted:
            raise AuthenticationFailed("this realm does not accept tokens; sign in with a password")
        # In a thread, because a client may send a long token, and decoding it takes time.
        key_id = await self._offload(lambda: key_id_of(text))
        key = await self._key(key_id)
        claims = await self._offload(lambda: self._claims(text, key))
        return self._principal_of(claims, host)

    # --- keys ----------------------------------------------------------------------------

    async def _key(self, key_id: str) -> Any:
        """Return the key with which a token is signed, from the keys fetched before or now. Raises
        ``AuthenticationFailed``, ``Unavailable``."""
        if not (self._fetching.locked() and key_id in self._keys):
            async with self._fetching:  # tokens with a new key wait for a single fetch
                await self._refresh_if_due(key_id)
        if (reason := self._refused.get(key_id)) is not None:
            raise AuthenticationFailed(f"the token is signed with a key ({key_id!r}) {reason}")
        if not self._keys:
            raise Unavailable("the keys for tokens could not be fetched; try again in a moment")
        key = self._keys.get(key_id) or (None if key_id else self._only_key())
        if key is None:
            raise AuthenticationFailed(
                f"the token is signed with a key ({key_id!r}) that the issuer does not publish"
            )
        return key

    async def _refresh_if_due(self, key_id: str) -> None:
        now_us = self._clock.now_us()
        is_stale = now_us - self._fetched_us > FRESH_S * 1_000_000
        # Clients choose the key ids in their tokens, so not every unknown id may cause a fetch.
        may_try = now_us - self._tried_us > RETRY_S * 1_000_000
        if (is_stale or key_id not in self._keys) and may_try:
            self._tried_us = now_us
            await self._refresh(now_us)

    def _only_key(self) -> Any:
        """Return the key for tokens without a key id: the only key of a set; None if the set has
        several."""
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    async def _refresh(self, now_us: int) -> None:
        """Fetch the keys. Raises ``Unavailable`` if the fetch fails and no earlier keys exist."""
        try:
            keys: _Keys = await self._offload(lambda: keys_in(self._fetch(self._rules.keys)))
        except PenstockError as error:
            if not self._keys:
                raise
            # The keys of the last fetch stay valid.
            _log.warning("access.keys_not_fetched", reason=str(error))
        else:
            self._keys, self._refused, self._fetched_us = keys.good, keys.refused, now_us
            for key_id, reason in keys.refused.items():
                _log.warning("access.key_refused", key=key_id, reason=reason)

    # --- claims --------------------------------------------------------------------------

    def _claims(self, text: str, key: Any) -> dict[str, Any]:
        """Check the signature, audience and issuer of a token, and return its claims. Raises
        ``AuthenticationFailed``."""
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

    def _principal_of(self, claims: Mapping[str, Any], host: str) -> Principal:
        """Return the principal that checked claims name. Raises ``AuthenticationFailed``."""
        until_us = self._checked_times(claims)
        rules = self._rules
        user = _claim(claims, rules.user_claim)
        if not isinstance(user, str) or user == ANONYMOUS:
            raise AuthenticationFailed(
                f"the token's claim {rules.user_claim!r} does not name a user"
            )
        claimed = _claim(claims, rules.groups_claim)
        groups = claimed.split() if isinstance(claimed, str) else claimed
        if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            groups = []  # groups only add rights: without them the token is safe to accept
        group_names = frozenset(group for group in groups if isinstance(group, str))
        try:
            name = checked_name(user, "user")
        except InvalidArgument as error:
            raise AuthenticationFailed(f"the token is refused: {error}") from error
        return Principal(name, host, group_names, proof="token", until_us=until_us)

    def _checked_times(self, claims: Mapping[str, Any]) -> int:
        """Check the times of a token. Return its expiry in microseconds since 1970, with the
        tolerance for clocks. Raises ``AuthenticationFailed``."""
        now_us, leeway_us = self._clock.now_us(), LEEWAY_S * 1_000_000
        until_us = _time_us(claims, "exp") + leeway_us
        if now_us > until_us:
            raise AuthenticationFailed("the token has expired; get a new one")
        if "nbf" in claims and now_us < _time_us(claims, "nbf") - leeway_us:
            raise AuthenticationFailed("the token is not valid yet")
        return until_us


def fetched(location: str) -> bytes:
    """Return the bytes of a key set from a file or URL. The call blocks, so make it in a thread.
    Raises ``Unavailable``."""
    import urllib.request
    from http.client import HTTPException

    try:
        if "://" not in location:
            with open(location, "rb") as file:
                return file.read(KEYS_BYTES_MAX)
        with urllib.request.urlopen(location, timeout=FETCH_TIMEOUT_S) as answer:
            _check_url(answer.url)  # the URL after redirects
            document: bytes = answer.read(KEYS_BYTES_MAX)
            return document
    except (OSError, ValueError, HTTPException) as error:
        reason = without_secrets(str(error), location)
        # The original error is left out, because its text may have the secrets of the URL.
        raise Unavailable(
            f"the keys for tokens cannot be read from {shown(location)}: {reason}"
        ) from None


def _check_url(location: str) -> None:
    """Raise ``InvalidArgument`` for a URL whose keys could be replaced in transit."""
    if "://" in location and "@" in location:
        raise InvalidArgument(
            f"access.token_keys is {shown(location)!r}: keys are fetched without a user and "
            f"password; leave out the part before the @"
        )
    parts = urlsplit(location)
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if "://" in location and parts.scheme != "https" and not is_local:
        raise InvalidArgument(
            f"access.token_keys is {shown(location)!r}: use a file or an https URL; keys fetched "
            f"over plain http could be forged"
        )


def _is_installed() -> bool:
    return find_spec("jwt") is not None


def key_id_of(text: str) -> str:
    """Return the id of the key that has signed a token. Raises ``AuthenticationFailed``."""
    import jwt

    try:
        # The library parses header and claims recursively, before it checks the signature. So a
        # deeply nested token, which anyone can send, would exhaust the stack.
        for part in text.split(".")[:2]:
            check_json_nesting(jwt.utils.base64url_decode(part))
        header = jwt.get_unverified_header(text)
    except (InvalidArgument, jwt.PyJWTError, ValueError, RecursionError) as error:
        raise AuthenticationFailed(f"this is not a token: {error}") from error
    return str(header.get("kid", ""))


class _KeySet(Struct):
    keys: list[dict[str, Any]]


class _Keys(NamedTuple):
    """Keys by id, and the reasons of refused keys by id."""

    good: dict[str, Any]
    refused: dict[str, str]


def keys_in(document: bytes) -> _Keys:
    """Return the keys in a document. Raises ``Unavailable`` if it is not a set of keys."""
    key_set = decode_json(
        document,
        _KeySet,
        whole="the document",
        refuse=lambda why: Unavailable(f"the keys for tokens are not a JSON Web Key Set: {why}"),
    )
    keys = _Keys({}, {})
    for fields in key_set.keys:
        key, reason = _usable_key(fields)
        key_id = str(fields.get("kid") or "")
        if key is not None:
            keys.good[key_id] = key
        elif reason:
            keys.refused[key_id] = reason
    for key_id in keys.good:  # a key for encryption may have the id of one for signatures
        keys.refused.pop(key_id, None)
    if not keys.good and not keys.refused:
        raise Unavailable(
            "the keys for tokens are not a JSON Web Key Set: none of them can be used"
        )
    return keys


def _usable_key(fields: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a key that verifies signatures, or None with the reason why not. The reason is empty
    for an unknown type of key, which a provider may publish for other services."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    operations = fields.get("key_ops")
    if fields.get("use", "sig") != "sig" or (operations is not None and "verify" not in operations):
        return None, "that is not meant for signatures"
    try:
        key = jwt.PyJWK.from_dict(dict(fields))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError):
        return None, ""
    if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS_MIN:
        return None, f"of {key.key.key_size} bits; an RSA key has at least {RSA_BITS_MIN}"
    return key, ""


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return the value of a claim. Dots in ``path`` select fields of nested objects."""
    if path in claims:  # the name of a claim may have dots
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _time_us(claims: Mapping[str, Any], name: str) -> int:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise AuthenticationFailed(f"the token's {name} is not a time: {value!r}")
    return int(value * 1_000_000)
