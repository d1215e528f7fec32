"""The AMQP performatives and the composite types in them (1.4, 2.7, 3.4, 3.5, 4.5).

For each field there is the type, whether it is mandatory, and its bounds. Frames are checked here
first because Proton treats a field of a wrong type as absent: a handle that is a text would be
handle 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_amqp.wire.types import (
    Array,
    Bytes,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    check_arrays,
    elements,
    listed,
    read,
    written,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

DECODE: Final = "amqp:decode-error"
INVALID: Final = "amqp:invalid-field"

CONTAINER_MAX: Final = 255
"""Most characters of a container's name, which becomes part of the names of durables."""
HOST_MAX: Final = 255
LINK_NAME_MAX: Final = 1_024
ADDRESS_MAX: Final = 1_024
TAG_BYTES_MAX: Final = 32
"""Most bytes of a delivery tag (2.8.7)."""
TRANSACTION_BYTES_MAX: Final = 32
"""Most bytes of a transaction id (4.5.7)."""
FRAME_BYTES_MIN: Final = 512
"""Frame size in bytes that every peer must accept (2.8.19)."""
CONDITION_MAX: Final = 255
DESCRIPTION_MAX: Final = 4_096


class Unfit(Exception):
    """Raised for a field that is missing, has a wrong type, or exceeds a bound."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


Check = Callable[[Any, str], None]
"""Checks a value. Raises :class:`Unfit`; the text argument is the name of the field."""


class Field(NamedTuple):
    name: str
    check: Check
    is_mandatory: bool = False


class Composite(NamedTuple):
    """A composite type: its fields, in their order."""

    name: str
    fields: tuple[Field, ...]


# --- types --------------------------------------------------------------------------------


def _kind(kind: type, name: str, most: int = 0) -> Check:
    """A check for exactly one type; ``most`` limits characters of text or bytes of binaries."""

    def check(value: Any, where: str) -> None:
        given: type = type(value)
        if given is not kind:
            raise Unfit(DECODE, f"{where} is {_named(value)}, but must be a {name}")
        if most and len(value) > most:
            raise Unfit(
                INVALID, f"{where} has {len(value)} characters or bytes; at most {most} are allowed"
            )

    return check


def _named(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _number(kind: type[int], name: str, least: int, most: int) -> Check:
    of_kind = _kind(kind, name)

    def check(value: Any, where: str) -> None:
        of_kind(value, where)
        if not least <= value <= most:
            raise Unfit(INVALID, f"{where} is {int(value)}; allowed are {least} to {most}")

    return check


def _choice(*words: str) -> Check:
    def check(value: Any, where: str) -> None:
        if type(value) is not Symbol:
            raise Unfit(DECODE, f"{where} is {_named(value)}, but must be a symbol")
        if value not in words:
            raise Unfit(INVALID, f"{where} is {str(value)[:40]!r}; it may be {', '.join(words)}")

    return check


def _multiple(value: Any, where: str) -> None:
    """Check for a symbol, or an array of symbols."""
    found = elements(value) if isinstance(value, Array) else [value]
    if not all(type(each) is Symbol for each in found):
        raise Unfit(DECODE, f"{where} must be a symbol or an array of symbols")


def _any(value: Any, where: str) -> None:
    """Accept any value that can be decoded."""


_UINT: Final = _kind(UInt, "uint")
_BOOL: Final = _kind(bool, "boolean")
_MAP: Final = _kind(dict, "map")
_TAG: Final = _kind(bytes, "binary", TAG_BYTES_MAX)
_TRANSACTION: Final = _kind(bytes, "binary", TRANSACTION_BYTES_MAX)
_RECEIVER_MODE: Final = _number(UByte, "ubyte", 0, most=1)


def _address(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise Unfit(DECODE, f"{where} is {_named(value)}, but must be a string")
    if len(value) > ADDRESS_MAX:
        raise Unfit(
            INVALID, f"{where} has {len(value)} characters; at most {ADDRESS_MAX} are allowed"
        )


class _OneOf:
    """A check for a described list of one of some types; values of other types are accepted."""

    def __init__(self, *composites: tuple[int, Composite]) -> None:
        self._composites = dict(composites)
        self._codes = {f"amqp:{composite.name}:list": code for code, composite in composites}

    def __call__(self, value: Any, where: str) -> None:
        if not isinstance(value, Described):
            raise Unfit(DECODE, f"{where} is {_named(value)}, but must be a described list")
        composite = self._composites.get(_code_in(self._codes, value.descriptor))
        if composite is not None:
            check_fields(composite, value.value)

    def knows(self, value: Any) -> bool:
        """Whether the value has one of the types."""
        return (
            isinstance(value, Described)
            and _code_in(self._codes, value.descriptor) in self._composites
        )

    def numbered(self, value: Any) -> Any:
        """The value with numbers in place of symbols as descriptors, also inside it."""
        if not self.knows(value) or not isinstance(value.value, list):
            return value
        code = _code_in(self._codes, value.descriptor)
        values = _numbered(self._composites[code], value.value)
        if isinstance(value.descriptor, ULong) and values is value.value:
            return value
        return Described(ULong(code), values)


def _code_in(codes: Mapping[str, int], descriptor: Any) -> int:
    """The code of a descriptor, which is a number or one of the symbols in ``codes``; -1 for any
    other value: a descriptor may be of any type, also one that cannot be a key."""
    if isinstance(descriptor, ULong):
        return int(descriptor)
    return codes.get(descriptor, -1) if isinstance(descriptor, Symbol) else -1


# --- composites ---------------------------------------------------------------------------

ERROR: Final = Composite(
    "error",
    (
        Field("condition", _kind(Symbol, "symbol", CONDITION_MAX), is_mandatory=True),
        Field("description", _kind(str, "string", DESCRIPTION_MAX)),
        Field("info", _MAP),
    ),
)
_ERROR: Final = _OneOf((0x1D, ERROR))

_RECEIVED: Final = Composite(
    "received",
    (
        Field("section-number", _UINT, is_mandatory=True),
        Field("section-offset", _kind(ULong, "ulong"), is_mandatory=True),
    ),
)
_MODIFIED: Final = Composite(
    "modified",
    (
        Field("delivery-failed", _BOOL),
        Field("undeliverable-here", _BOOL),
        Field("message-annotations", _MAP),
    ),
)
OUTCOMES: Final = (
    (0x23, _RECEIVED),
    (0x24, Composite("accepted", ())),
    (0x25, Composite("rejected", (Field("error", _ERROR),))),
    (0x26, Composite("released", ())),
    (0x27, _MODIFIED),
)
TRANSACTIONAL: Final = Composite(
    "transactional-state",
    (
        Field("txn-id", _TRANSACTION, is_mandatory=True),
        Field("outcome", _OneOf(*OUTCOMES)),
    ),
)
_STATE: Final = _OneOf(
    *OUTCOMES,
    (0x33, Composite("declared", (Field("txn-id", _TRANSACTION, is_mandatory=True),))),
    (0x34, TRANSACTIONAL),
)

_EXPIRES: Final = _choice("link-detach", "session-end", "connection-close", "never")
_TERMINUS: Final = (
    Field("address", _address),
    Field("durable", _number(UInt, "uint", 0, most=2)),
    Field("expiry-policy", _EXPIRES),
    Field("timeout", _UINT),
    Field("dynamic", _BOOL),
    Field("dynamic-node-properties", _MAP),
)
SOURCE: Final = Composite(
    "source",
    (
        *_TERMINUS,
        Field("distribution-mode", _kind(Symbol, "symbol")),
        Field("filter", _MAP),
        Field("default-outcome", _OneOf(*OUTCOMES)),
        Field("outcomes", _multiple),
        Field("capabilities", _multiple),
    ),
)
TARGET: Final = Composite("target", (*_TERMINUS, Field("capabilities", _multiple)))
COORDINATOR: Final = Composite("coordinator", (Field("capabilities", _multiple),))

_SOURCES: Final = _OneOf((0x28, SOURCE))
_TARGETS: Final = _OneOf((0x29, TARGET), (0x30, COORDINATOR))

DECLARE: Final = Composite("declare", (Field("global-id", _any),))
DISCHARGE: Final = Composite(
    "discharge", (Field("txn-id", _TRANSACTION, is_mandatory=True), Field("fail", _BOOL))
)

_SHARED: Final = (
    Field("offered-capabilities", _multiple),
    Field("desired-capabilities", _multiple),
    Field("properties", _MAP),
)

PERFORMATIVES: Final[dict[int, Composite]] = {
    OPEN: Composite(
        "open",
        (
            Field("container-id", _kind(str, "string", CONTAINER_MAX), is_mandatory=True),
            Field("hostname", _kind(str, "string", HOST_MAX)),
            Field("max-frame-size", _number(UInt, "uint", FRAME_BYTES_MIN, most=(1 << 32) - 1)),
            Field("channel-max", _kind(UShort, "ushort")),
            Field("idle-time-out", _UINT),
            Field("outgoing-locales", _multiple),
            Field("incoming-locales", _multiple),
            *_SHARED,
        ),
    ),
    BEGIN: Composite(
        "begin",
        (
            Field("remote-channel", _kind(UShort, "ushort")),
            Field("next-outgoing-id", _UINT, is_mandatory=True),
            Field("incoming-window", _UINT, is_mandatory=True),
            Field("outgoing-window", _UINT, is_mandatory=True),
            Field("handle-max", _UINT),
            *_SHARED,
        ),
    ),
    ATTACH: Composite(
        "attach",
        (
            Field("name", _kind(str, "string", LINK_NAME_MAX), is_mandatory=True),
            Field("handle", _UINT, is_mandatory=True),
            Field("role", _BOOL, is_mandatory=True),
            Field("snd-settle-mode", _number(UByte, "ubyte", 0, most=2)),
            Field("rcv-settle-mode", _RECEIVER_MODE),
            Field("source", _SOURCES),
            Field("target", _TARGETS),
            Field("unsettled", _MAP),
            Field("incomplete-unsettled", _BOOL),
            Field("initial-delivery-count", _UINT),
            Field("max-message-size", _kind(ULong, "ulong")),
            *_SHARED,
        ),
    ),
    FLOW: Composite(
        "flow",
        (
            Field("next-incoming-id", _UINT),
            Field("incoming-window", _UINT, is_mandatory=True),
            Field("next-outgoing-id", _UINT, is_mandatory=True),
            Field("outgoing-window", _UINT, is_mandatory=True),
            Field("handle", _UINT),
            Field("delivery-count", _UINT),
            Field("link-credit", _UINT),
            Field("available", _UINT),
            Field("drain", _BOOL),
            Field("echo", _BOOL),
            Field("properties", _MAP),
        ),
    ),
    TRANSFER: Composite(
        "transfer",
        (
            Field("handle", _UINT, is_mandatory=True),
            Field("delivery-id", _UINT),
            Field("delivery-tag", _TAG),
            Field("message-format", _UINT),
            Field("settled", _BOOL),
            Field("more", _BOOL),
            Field("rcv-settle-mode", _RECEIVER_MODE),
            Field("state", _STATE),
            Field("resume", _BOOL),
            Field("aborted", _BOOL),
            Field("batchable", _BOOL),
        ),
    ),
    DISPOSITION: Composite(
        "disposition",
        (
            Field("role", _BOOL, is_mandatory=True),
            Field("first", _UINT, is_mandatory=True),
            Field("last", _UINT),
            Field("settled", _BOOL),
            Field("state", _STATE),
            Field("batchable", _BOOL),
        ),
    ),
    DETACH: Composite(
        "detach",
        (
            Field("handle", _UINT, is_mandatory=True),
            Field("closed", _BOOL),
            Field("error", _ERROR),
        ),
    ),
    END: Composite("end", (Field("error", _ERROR),)),
    CLOSE: Composite("close", (Field("error", _ERROR),)),
}

_CODES: Final = {f"amqp:{each.name}:list": code for code, each in PERFORMATIVES.items()}


# --- reading ------------------------------------------------------------------------------


class Performative(NamedTuple):
    """A decoded performative. :func:`check_performative` checks its fields."""

    code: int
    values: list[Any]
    """One value for each field of the standard; None for absent fields."""
    begin: int
    """Offset of its list of fields."""
    end: int


def performative_of(data: Bytes, at: int) -> Performative:
    """Decode the performative at an offset. Raises ``RemoteProtocolViolation``."""
    if data[at : at + 1] != b"\x00":
        raise RemoteProtocolViolation("an AMQP frame has no performative")
    descriptor, begin = read(data, at + 1)
    code = _code_in(_CODES, descriptor)
    if code not in PERFORMATIVES:
        raise RemoteProtocolViolation(
            f"an AMQP frame has an unknown performative: {str(descriptor)[:40]!r}"
        )
    values, end = read(data, begin)
    if not isinstance(values, list):
        raise RemoteProtocolViolation(f"a performative is {_named(values)}, not a list")
    return Performative(code, values, begin, end)


def check_performative(found: Performative) -> list[Any]:
    """Check the fields and return them, with None for absent ones. Raises :class:`Unfit`."""
    composite = PERFORMATIVES[found.code]
    check_fields(composite, found.values)
    values = found.values + [None] * (len(composite.fields) - len(found.values))
    if found.code == ATTACH and values[2] is False and values[9] is None:
        raise Unfit(DECODE, "initial-delivery-count of attach is missing; a sender must give it")
    return values


def numbered(found: Performative) -> list[Any]:
    """The fields with numbers in place of symbols as descriptors: the standard gives each type
    both, and Proton knows only numbers in states, outcomes, sources and targets. The same list if
    it has no such symbol. The fields need not be checked yet."""
    return _numbered(PERFORMATIVES[found.code], found.values)


def _numbered(composite: Composite, values: list[Any]) -> list[Any]:
    changed: dict[int, Any] = {}
    for place, (field, value) in enumerate(zip(composite.fields, values, strict=False)):
        if isinstance(field.check, _OneOf) and value is not None:
            other = field.check.numbered(value)
            if other is not value:
                changed[place] = other
    return [changed.get(place, value) for place, value in enumerate(values)] if changed else values


def unknown_terminus(attach: Sequence[Any]) -> str:
    """Which end of an attach, whose fields are checked, has a type that the standard does not
    have, with its descriptor; empty: none."""
    for what, place, kinds in (("source", 5, _SOURCES), ("target", 6, _TARGETS)):
        if attach[place] is not None and not kinds.knows(attach[place]):
            return f"{what} of type {str(attach[place].descriptor)[:40]}"
    return ""


def closing(condition: str, description: str, info: Mapping[Symbol, Any] | None = None) -> bytes:
    """A close frame with an error: its condition and description, and more about it."""
    error = [written(Symbol(condition)), written(description)]
    if info:
        error.append(written(dict(info)))
    return _framed(b"\x00\x53\x18" + listed([b"\x00\x53\x1d" + listed(error)]))


def opening(container: str) -> bytes:
    """An open frame that says nothing but who is there."""
    return _framed(b"\x00\x53\x10" + listed([written(container)]))


def _framed(body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def check_fields(composite: Composite, values: Any) -> None:
    """Check the fields of a composite value. Raises :class:`Unfit` for the first wrong one."""
    name, fields = composite.name, composite.fields
    if not isinstance(values, list):
        raise Unfit(DECODE, f"{name} is {_named(values)}, but must be a list")
    if len(values) > len(fields):
        raise Unfit(DECODE, f"{name} has {len(values)} fields; the standard knows {len(fields)}")
    for place, field in enumerate(fields):
        value = values[place] if place < len(values) else None
        where = f"{field.name} of {name}"
        if value is not None:
            try:
                field.check(value, where)
                check_arrays(value)
            except RemoteProtocolViolation as error:
                raise Unfit(DECODE, f"{where}: {error}") from None
        elif field.is_mandatory:
            raise Unfit(DECODE, f"{where} is missing, but is required")
