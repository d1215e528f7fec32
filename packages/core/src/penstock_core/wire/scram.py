"""SCRAM-SHA-256 for client and server, without I/O or channel binding (RFC 5802, RFC 7677).

The server stores a :class:`Verifier`, which reveals neither the password nor a way to sign in.
With the verifier the server can also check a password that is sent in plain text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

from penstock_core.api.access import Verifier
from penstock_core.vocabulary.errors import AuthenticationFailed, InvalidArgument
from penstock_core.wire.saslprep import prepared

MECHANISM = "SCRAM-SHA-256"
"""Name of the mechanism in sign-in messages."""
ROUNDS_MIN = 4_096
"""Minimum number of iterations; both sides refuse fewer (RFC 7677)."""
ROUNDS_MAX = 5_000_000
"""Maximum number of iterations that a client computes for a server that has not authenticated
itself."""
PLAIN = "PLAIN"
"""Name of the mechanism of a client that sends the password itself (RFC 4616), for a server that
cannot have a record of it."""
NONCE_BYTES = 18
"""Number of random bytes in a nonce."""

_NO_BINDING = "n,,"
"""Start of the client's first message: no channel binding, and no other identity."""
# One text for both causes, so that a guesser does not learn which users exist.
_WRONG = "the user is not known here, or the password is wrong"


def check_rounds(rounds: int) -> None:
    """Raise ``AuthenticationFailed`` unless the server's number of iterations is within bounds.

    Fewer iterations do not protect the password, and more would keep this process busy.
    """
    if not ROUNDS_MIN <= rounds <= ROUNDS_MAX:
        raise AuthenticationFailed(
            f"the realm asks for {rounds} rounds; this client accepts {ROUNDS_MIN} to {ROUNDS_MAX}"
        )


def salted(password: str, salt: bytes, rounds: int) -> bytes:
    """Derive the salted password. Slow: call it off the event loop.

    Raises ``InvalidArgument`` for a password with characters that are not allowed.
    """
    return hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, iterations=rounds)


def verifier(password: str, salt: bytes, rounds: int) -> Verifier:
    """Return the record of a password, to be stored by a server. Slow: call it off the event loop.
    Raises ``InvalidArgument``."""
    if not password:
        raise InvalidArgument("the password is empty; choose one")
    key = salted(password, salt, rounds)
    return Verifier(
        salt, rounds, _digest(_hmac(key, b"Client Key")), server_key=_hmac(key, b"Server Key")
    )


def check_length(password: str, length_min: int) -> None:
    """Raise ``InvalidArgument`` for a new password that is shorter than the realm allows."""
    if len(password) < length_min:
        raise InvalidArgument(
            f"the password has {len(password)} characters; it must have at least {length_min} "
            f"(access.password_length_min)"
        )


def is_right(password: str, record: Verifier) -> bool:
    """Whether ``password`` is the password of the record. Slow: call it off the event loop."""
    try:
        key = salted(password, record.salt, record.rounds)
    except InvalidArgument:
        return False
    return hmac.compare_digest(_digest(_hmac(key, b"Client Key")), record.stored_key)


def proof_of(password: str, salt: bytes, rounds: int, message: bytes) -> bytes:
    """Return the proof that the sender of ``message`` knows the password, for a server that has its
    record. Slow: call it off the event loop. Raises ``InvalidArgument``."""
    client_key = _hmac(salted(password, salt, rounds), b"Client Key")
    return _xor(client_key, _hmac(_digest(client_key), message))


def is_proven(proof: bytes, record: Verifier, message: bytes) -> bool:
    """Whether ``proof`` is the result of :func:`proof_of` for the password of the record and this
    message."""
    signature = _hmac(record.stored_key, message)
    # Only bytes of equal length can be combined below.
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(_digest(_xor(proof, signature)), record.stored_key)


class ScramClient:
    """The client's side of one exchange: :meth:`first`, :meth:`final`, :meth:`check`."""

    def __init__(self, user: str, password: str, nonce: str) -> None:
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={_escaped(prepared(user))},r={nonce}"
        self._expected = b""
        """The proof that the server has to send; empty before :meth:`final`."""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"{_NO_BINDING}{self._first_bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the client's second message, with its proof. Slow: call it off the event loop.
        Raises ``AuthenticationFailed`` for an invalid challenge."""
        fields = _fields(challenge)
        nonce, rounds = fields.get("r", ""), _number(fields.get("i", ""))
        salt = _decoded(fields.get("s", ""))
        # "m" announces an extension that this client does not know (RFC 5802, section 5.1). The
        # realm must have appended its own part to the client's nonce.
        if "m" in fields or not nonce.startswith(self._nonce) or nonce == self._nonce or not salt:
            raise AuthenticationFailed("the realm's challenge does not belong to this sign-in")
        check_rounds(rounds)
        key = salted(self._password, salt, rounds)
        client_key = _hmac(key, b"Client Key")
        without_proof = f"c={_encoded(_NO_BINDING.encode())},r={nonce}"
        signed_text = f"{self._first_bare},{challenge.decode()},{without_proof}".encode()
        signature = _hmac(_digest(client_key), signed_text)
        self._expected = _hmac(_hmac(key, b"Server Key"), signed_text)
        return f"{without_proof},p={_encoded(_xor(client_key, signature))}".encode()

    def check(self, outcome: bytes) -> None:
        """Raise ``AuthenticationFailed`` unless the server proved that it has the user's record."""
        proof = _decoded(_fields(outcome).get("v", ""))
        # Without `final` the expected proof is empty, and must not equal an empty proof.
        if not self._expected or not hmac.compare_digest(proof, self._expected):
            raise AuthenticationFailed(
                "the realm could not prove that it knows the password: it may be an impostor"
            )


class ScramServer:
    """The server's side of one exchange: :attr:`user`, :meth:`challenge`, :meth:`outcome`."""

    def __init__(self, first: bytes, nonce: str) -> None:
        """Parse the client's first message. Raises ``AuthenticationFailed`` if it is invalid."""
        text = _text(first)
        binding, comma, without_binding = text.partition(",")
        authorization, comma, bare = without_binding.partition(",")
        fields = _fields(bare.encode())
        # "y": the client can bind channels, but believes that the server cannot (RFC 5802).
        if not comma or binding not in ("n", "y") or authorization or "m" in fields:
            raise AuthenticationFailed(
                "the sign-in must be SCRAM-SHA-256 without channel binding and without another "
                "identity"
            )
        if not fields.get("n") or not fields.get("r"):
            raise AuthenticationFailed("a SCRAM-SHA-256 sign-in names a user and a nonce")
        self.user = _unescaped(fields["n"])
        """Name of the user who signs in, not verified yet."""
        self._bound = f"{binding},,"
        self._bare = bare
        self._nonce = fields["r"] + nonce
        self._challenge = ""
        self._known: Verifier | None = None
        """The user's record; None before :meth:`challenge`."""

    def challenge(self, record: Verifier) -> bytes:
        """Return the challenge, made from the user's record."""
        self._known = record
        self._challenge = f"r={self._nonce},s={_encoded(record.salt)},i={record.rounds}"
        return self._challenge.encode()

    def outcome(self, final: bytes) -> bytes:
        """Return the server's answer to the client's second message. Raises
        ``AuthenticationFailed`` if the proof is wrong."""
        verifier_record = self._known
        assert verifier_record is not None, "challenge() comes first"
        text = _text(final)
        without_proof, _, proof = text.rpartition(",p=")
        fields = _fields(without_proof.encode())
        signed_text = f"{self._bare},{self._challenge},{without_proof}".encode()
        signature = _hmac(verifier_record.stored_key, signed_text)
        client_proof = _decoded(proof)
        is_ours = _decoded(fields.get("c", "")) == self._bound.encode()
        is_ours = is_ours and hmac.compare_digest(
            fields.get("r", "").encode(), self._nonce.encode()
        )
        if not is_ours or len(client_proof) != len(signature):
            raise AuthenticationFailed(_WRONG)
        client_key = _xor(client_proof, signature)
        if not hmac.compare_digest(_digest(client_key), verifier_record.stored_key):
            raise AuthenticationFailed(_WRONG)
        return f"v={_encoded(_hmac(verifier_record.server_key, signed_text))}".encode()


def _fields(message: bytes) -> Mapping[str, str]:
    """Parse ``a=1,b=2``. The first value of a name counts."""
    fields: dict[str, str] = {}
    for part in _text(message).split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1:
            raise AuthenticationFailed(f"{part[:40]!r} is not a part of a SCRAM message")
        fields.setdefault(name, value)
    return fields


def _text(message: bytes) -> str:
    """Return a message as text. Raises ``AuthenticationFailed`` if it is not UTF-8."""
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a SCRAM message must be UTF-8") from error


def _number(text: str) -> int:
    """Return a number of iterations; 0, which is refused, for other texts and long numbers."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str) -> bytes:
    """Return the bytes of a base64 text; empty for other texts."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _escaped(user: str) -> str:
    # "=" first, because the escape of a comma contains one.
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescaped(user: str) -> str:
    # "=" last, so that an escaped "=" before "2C" does not become a comma.
    return user.replace("=2C", ",").replace("=3D", "=")


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))
