"""The preface that a relaying node sends to the owner before the bytes of a client: it identifies
the client.

The bytes are a preface of the PROXY protocol, version 2, whose last field is a signature with the
secret of the cluster. Other fields are the receiving process (no other process accepts the
preface), the time of the preface's creation, and a random number.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import msgspec
from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import LimitReached, RemoteProtocolViolation

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first bytes of every preface; no protocol of the realm begins with them."""
HEAD_BYTES: Final = 16
"""Length of the part of a preface that ends with the length of the other parts."""
PREFACE_BYTES_MAX: Final = 8_192
"""Maximum length of a preface."""
VALID_S: Final = 120
"""A preface is accepted for this many seconds. Clocks of serving nodes differ by less."""

_PROXY: Final = 0x21  # version 2, a connection on behalf of another
_TCP4: Final = 0x11
_TCP6: Final = 0x21
"""Kinds of addresses: of TCP connections over IPv4 and IPv6."""
# Types of fields, in the range that the PROXY protocol leaves to applications.
_BY_NODE: Final = 0xE0
_FOR_PROCESS: Final = 0xE1
_CREATED_AT: Final = 0xE2
_RANDOM: Final = 0xE3
_SIGNED: Final = 0xE4
_SPEAKS_FOR: Final = 0xE5
_RANDOM_BYTES: Final = 16
_DIGEST_BYTES: Final = 32
MARK_BYTES: Final = _DIGEST_BYTES
"""Number of last bytes of a preface that identify it uniquely."""
_PURPOSE: Final = b"penstock relay 1"
"""Signed with every preface, so that other signatures with the secret are not valid prefaces."""
_NAMING: Final = b"penstock relay secret 1"
"""Signed to derive the name of a secret."""


class Place(Struct, frozen=True):
    """A network address and a port."""

    host: str
    port: int


class RelayOrigin(Struct, frozen=True):
    """The origin of a relayed connection."""

    client: Place
    """The address of the client."""
    reached: Place
    """The address of the relaying node to which the client connected."""
    node: str
    """The name of the relaying node."""
    speaks_for: Principal | None = None
    """The principal whose rights the requests have, if the relaying node itself sends them; None if
    they come from a client."""


def secret_name(secret: bytes) -> str:
    """Return the name of a secret, which does not reveal the secret."""
    return hmac.digest(secret, _NAMING, hashlib.sha256)[:8].hex()


def relay_preface(origin: RelayOrigin, secret: bytes, *, process: str, now_s: int) -> bytes:
    """Return the preface of a connection to the owner; ``process`` is the nonce of the owner's
    start. Raises ``LimitReached`` for a principal with too many groups."""
    family, addresses = _addresses(origin.client, origin.reached)
    fields = b"".join(
        (
            _field(_BY_NODE, origin.node.encode()),
            _field(_FOR_PROCESS, process.encode()),
            _field(_CREATED_AT, now_s.to_bytes(8, "big")),
            _field(_RANDOM, secrets.token_bytes(_RANDOM_BYTES)),
            b""
            if origin.speaks_for is None
            else _field(_SPEAKS_FOR, _encode_principal(origin.speaks_for)),
        )
    )
    length = len(addresses) + len(fields) + 3 + _DIGEST_BYTES
    if length + HEAD_BYTES > PREFACE_BYTES_MAX:
        raise LimitReached(
            f"the names of the user and their groups take {len(fields)} bytes; a node can send "
            f"about {PREFACE_BYTES_MAX} to the owner; use fewer groups"
        )
    begun = b"".join(
        (SIGNATURE, bytes((_PROXY, family)), length.to_bytes(2, "big"), addresses, fields)
    )
    return begun + _field(_SIGNED, _digest(begun, secret))


def preface_bytes(begun: bytes) -> int:
    """Return the length of the preface that begins with these bytes, or 0 if more bytes are needed
    to know it. Raises ``RemoteProtocolViolation`` if the preface is too long."""
    if len(begun) < HEAD_BYTES:
        return 0
    length = HEAD_BYTES + int.from_bytes(begun[HEAD_BYTES - 2 : HEAD_BYTES], "big")
    if length > PREFACE_BYTES_MAX:
        raise RemoteProtocolViolation(
            f"a connection began with a relay preface of {length} bytes; at most "
            f"{PREFACE_BYTES_MAX} are allowed"
        )
    return length


def may_be_preface(begun: bytes) -> bool:
    """Whether a connection that begins with these bytes may begin with a preface."""
    return begun[: len(SIGNATURE)] == SIGNATURE[: len(begun)]


def read_preface(data: bytes, secret: bytes, *, process: str, now_s: int) -> RelayOrigin:
    """Return the origin of a connection that begins with the complete preface ``data``. Raises
    ``RemoteProtocolViolation`` unless a node of this cluster made the preface for this process
    within the last ``VALID_S`` seconds."""
    end = len(data) - 3 - _DIGEST_BYTES
    if end < HEAD_BYTES or data[12] != _PROXY:
        raise RemoteProtocolViolation("the relay preface of a connection is not signed")
    signature_field = data[end:]
    # Addresses and fields are parsed only after this check, because anybody can send a preface.
    if not hmac.compare_digest(signature_field, _field(_SIGNED, _digest(data[:end], secret))):
        raise RemoteProtocolViolation(
            "the relay preface of a connection is not signed by a node of this cluster"
        )
    # Addresses and ports of both ends: 2 * (4 + 2) bytes for IPv4, 2 * (16 + 2) for IPv6.
    size = 12 if data[13] == _TCP4 else 36
    fields = _fields(data[HEAD_BYTES + size : end])
    if fields.get(_FOR_PROCESS, b"").decode() != process:
        raise RemoteProtocolViolation(
            "the relay preface of a connection was made for another process"
        )
    if abs(now_s - int.from_bytes(fields.get(_CREATED_AT, b""), "big")) > VALID_S:
        raise RemoteProtocolViolation(
            f"the relay preface of a connection was not made in the last {VALID_S} s: it was "
            f"recorded and replayed, or the clocks of the nodes differ"
        )
    client, reached = _places(data[HEAD_BYTES : HEAD_BYTES + size])
    encoded_principal = fields.get(_SPEAKS_FOR)
    try:
        principal = (
            None
            if encoded_principal is None
            else msgspec.json.decode(encoded_principal, type=Principal)
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolViolation(f"a relay preface has no valid user: {error}") from error
    return RelayOrigin(client, reached, fields.get(_BY_NODE, b"").decode(), speaks_for=principal)


def _encode_principal(principal: Principal) -> bytes:
    return msgspec.json.encode(principal)


def _digest(begun: bytes, secret: bytes) -> bytes:
    """Return the signature of a preface whose other bytes are ``begun``."""
    return hmac.digest(secret, _PURPOSE + begun, hashlib.sha256)


def _field(kind: int, value: bytes) -> bytes:
    """Return a field of the preface: its kind, the length of its value, and the value."""
    return bytes((kind,)) + len(value).to_bytes(2, "big") + value


def _fields(data: bytes) -> dict[int, bytes]:
    """Return the fields of a preface by type. The signature has already been verified, so the
    fields are complete."""
    fields: dict[int, bytes] = {}
    while data:
        length = int.from_bytes(data[1:3], "big")
        fields[data[0]] = data[3 : 3 + length]
        data = data[3 + length :]
    return fields


def _addresses(client: Place, reached: Place) -> tuple[int, bytes]:
    """Return the address family, and the encoded addresses and ports of both ends."""
    # A scope such as %eth0 has a meaning on one machine only, and no place in the protocol.
    hosts = [ip_address(place.host.partition("%")[0]) for place in (client, reached)]
    ports = b"".join(place.port.to_bytes(2, "big") for place in (client, reached))
    if all(isinstance(host, IPv4Address) for host in hosts):
        return _TCP4, b"".join(host.packed for host in hosts) + ports
    return _TCP6, b"".join(_as_ipv6(host.packed) for host in hosts) + ports


def _as_ipv6(packed: bytes) -> bytes:
    """Return an address as IPv6; an IPv4 address is mapped."""
    return packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed


def _places(data: bytes) -> tuple[Place, Place]:
    """Return the two places in the bytes: two hosts of equal size, then two ports."""
    size = (len(data) - 4) // 2
    hosts = [_host(data[:size]), _host(data[size : 2 * size])]
    ports = [
        int.from_bytes(data[offset : offset + 2], "big") for offset in (2 * size, 2 * size + 2)
    ]
    return Place(hosts[0], ports[0]), Place(hosts[1], ports[1])


def _host(packed: bytes) -> str:
    """Return the text of a packed IP address, without the IPv6 form of an IPv4 address."""
    address = ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
