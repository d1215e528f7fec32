"""Maps error codes to reason codes, which never change, and to the return codes of MQTT 3.1.1."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import PenstockError
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.packets import MQTT_3, MQTT_5, ConnackPacket, ConnectPacket
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import ALLOWED, CONNACK, MqttViolation, Reason, UnknownVersion
from penstock_mqtt.wire.writing import packet_bytes
from penstock_server.runtime.access.internal_errors import as_internal_error, new_incident_id

_BY_REASON: Final[dict[Reason, tuple[str, ...]]] = {
    Reason.NOT_AUTHORIZED: ("access-denied", "cross-site", "insecure-connection"),
    Reason.BAD_USER_OR_PASSWORD: ("authentication-failed", "sign-in-locked"),
    Reason.CLIENT_IDENTIFIER_NOT_VALID: ("name-already-bound",),
    Reason.PACKET_TOO_LARGE: ("event-too-large",),
    Reason.QUOTA_EXCEEDED: (
        "capacity-reached",
        "limit-reached",
        "memory-limit",
        "storage-failed",
    ),
    Reason.SERVER_BUSY: ("publishing-paused", "unavailable", "no-quorum", "no-reply"),
    Reason.SERVER_SHUTTING_DOWN: ("realm-stopping",),
    Reason.USE_ANOTHER_SERVER: ("elsewhere", "deposed"),
    Reason.KEEP_ALIVE_TIMEOUT: ("connection-lost",),
    Reason.ADMINISTRATIVE_ACTION: ("durable-unbound", "name-does-not-exist", "session-closed"),
    Reason.PROTOCOL_ERROR: (
        "local-protocol-violation",
        "protocol-violation",
        "remote-protocol-violation",
    ),
    Reason.IMPLEMENTATION_SPECIFIC: (
        "already-aborted",
        "already-committed",
        "conflict",
        "data-lost",
        "durable-in-use",
        "illegal-state",
        "invalid-argument",
        "invalid-descriptor",
        "invalid-event",
        "lease-ended",
        "invalid-name",
        "invalid-selector",
        "damaged-backup",
        "damaged-export",
        "refused",
        "different-content",
        "no-such-stage",
        "no-such-transaction",
        "sequence-too-old",
        "trimmed",
    ),
    Reason.UNSPECIFIED: (
        "address-in-use",
        "cannot-connect",
        "corrupt",
        "damaged",
        "data-directory-in-use",
        "fenced",
        "internal",
        "newer-format",
        "penstock",
        "step-failed",
        "unknown",
    ),
}

REASONS: Final[Mapping[str, Reason]] = MappingProxyType(
    {code: reason for reason, codes in _BY_REASON.items() for code in codes}
)
"""The reason code of every error code."""

_log = logger("penstock.mqtt")


def reported(error: BaseException) -> PenstockError:
    """Return the error that clients see. An unexpected failure is logged, and clients only get its
    incident id."""
    if isinstance(error, PenstockError):
        return error
    incident = new_incident_id()
    _log.error("mqtt.failed", incident=incident, exc_info=error)
    return as_internal_error(incident)


_REASON_CHARACTERS_MAX: Final = 1_000
"""Maximum number of characters of a reason string."""


def explanation(text: str) -> PacketProperties:
    """Return the reason string of an answer. Error texts may quote input of clients: characters
    that MQTT cannot express are replaced, and a long text is cut."""
    expressible = text[:_REASON_CHARACTERS_MAX].replace("\0", "\ufffd")
    return PacketProperties(reason=expressible.encode(errors="replace").decode())


def reason_of(error: PenstockError) -> Reason:
    """Return the reason code of an error."""
    if isinstance(error, MqttViolation):
        return error.reason
    return REASONS.get(error.code, Reason.UNSPECIFIED)


def ending_reason(reason: Reason) -> Reason:
    """Return the reason code for a DISCONNECT; failed sign-ins become `NOT_AUTHORIZED`."""
    if reason in reasons.ALLOWED[reasons.DISCONNECT]:
        return reason
    return Reason.NOT_AUTHORIZED if reason in _SIGN_IN else Reason.UNSPECIFIED


def reason_within(error: PenstockError, allowed: frozenset[int]) -> Reason:
    """Return the reason code of an error in a packet that allows only some codes."""
    reason = reason_of(error)
    return reason if reason in allowed else Reason.UNSPECIFIED


_SIGN_IN: Final = (Reason.BAD_USER_OR_PASSWORD, Reason.BAD_AUTHENTICATION_METHOD)
"""Reason codes of refused sign-ins, which a DISCONNECT must not contain."""
_SERVER_ERRORS: Final = frozenset(("unavailable", "no-quorum", "realm-stopping"))
"""Errors that keep all clients from connecting."""


def connack_reason(error: PenstockError) -> Reason:
    """Return the reason code of a refused CONNECT."""
    if error.code in _SERVER_ERRORS:
        return Reason.SERVER_UNAVAILABLE
    return reason_within(error, ALLOWED[CONNACK])


_RETURN_CODES: Final = {
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    Reason.BAD_USER_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}


def return_code(reason: Reason) -> int:
    """Return the return code of MQTT 3.1.1 in a CONNACK; 3 (server unavailable) for most
    reasons."""
    return _RETURN_CODES.get(reason, 3)


def version_refusal(error: UnknownVersion) -> bytes:
    """Return the CONNACK for a client of an unknown version: in the form of MQTT 5 for later
    versions, and of 3.1.1 for earlier ones."""
    if error.version >= MQTT_5:
        return packet_bytes(ConnackPacket(error.reason), MQTT_5)
    return packet_bytes(ConnackPacket(return_code(error.reason)), MQTT_3)


def invalid_client_id(packet: ConnectPacket) -> str:
    """Return why a CONNECT needs a client id, or an empty text if it is valid."""
    if packet.version == MQTT_3 and not packet.clean_start and not packet.client_id:
        return "a session that outlives its connection (clean session 0) needs a client id"
    return ""
