"""The AMQP performatives and the composite types in them (1.4, 2.7, 3.4, 3.5, 4.5).

The tables give the type of each field, its bounds, and whether it is mandatory. Frames are checked
here first because Proton treats a field of the wrong type as absent: a handle that is a string
would be handle 0.
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
    encode,
    encode_list,
    read,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

DECODE: Final = "amqp:decode-error"
INVALID: Final = "amqp:invalid-field"

CONTAINER_MAX: Final = 255
"""Maximum characters of a container's name, which becomes part of the names of durables."""
HOST_MAX: Final = 255
LINK_NAME_MAX: Final = 1_024
ADDRESS_MAX: Final = 1_024
TAG_BYTES_MAX: Final = 32
"""Maximum bytes of a delivery tag (2.8.7)."""
TRANSACTION_BYTES_MAX: Final = 32
"""Maximum bytes of a transaction id (4.5.7)."""
FRAME_BYTES_MIN: Final = 512
"""Frame size in bytes that every peer must accept (2.8.19)."""
CONDITION_MAX: Final = 255
DESCRIPTION_MAX: Final = 4_096
"""Maximum characters of the condition and the description of an error."""


class Unfit(Exception):
    """Raised for a field that is missing, has a wrong type, or exceeds a bound. ``condition`` is
    the AMQP condition that reports the error."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


Check = Callable[[Any, str], None]
"""A function that checks a value and raises :class:`Unfit`; the second argument is the name of the
field."""


class Field(NamedTuple):
    """A field of a composite type."""

    name: str
    check: Check
    is_mandatory: bool = False


class Composite(NamedTuple):
    """A composite type: its fields, in their order."""

    name: str
    fields: tuple[Field, ...]


# --- types --------------------------------------------------------------------------------


def _of_type(kind: type, name: str, maximum: int = 0) -> Check:
    """Return a check for exactly one type; ``maximum`` limits characters of strings or bytes of
    binaries."""

    def check(value: Any, where: str) -> None:
        actual: type = type(value)
        if actual is not kind:
            raise Unfit(DECODE, f"{where} is {_type_name(value)}, but must be a {name}")
        if maximum and len(value) > maximum:
            raise Unfit(
                INVALID,
                f"{where} has {len(value)} characters or bytes; at most {maximum} are allowed",
            )

    return check


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _number_between(kind: type[int], name: str, minimum: int, maximum: int) -> Check:
    """Return a check for numbers of one type within bounds."""
    check_type = _of_type(kind, name)

    def check(value: Any, where: str) -> None:
        check_type(value, where)
        if not minimum <= value <= maximum:
            raise Unfit(INVALID, f"{where} is {int(value)}; allowed are {minimum} to {maximum}")

    return check


def _one_of_symbols(*words: str) -> Check:
    """Return a check for a symbol that is one of ``words``."""

    def check(value: Any, where: str) -> None:
        if type(value) is not Symbol:
            raise Unfit(DECODE, f"{where} is {_type_name(value)}, but must be a symbol")
        if value not in words:
            raise Unfit(INVALID, f"{where} is {str(value)[:40]!r}; it may be {', '.join(words)}")

    return check


def _check_symbols(value: Any, where: str) -> None:
    """Check that the value is a symbol or an array of symbols."""
    items = elements(value) if isinstance(value, Array) else [value]
    if not all(type(item) is Symbol for item in items):
        raise Unfit(DECODE, f"{where} must be a symbol or an array of symbols")


def _accept_any(value: Any, where: str) -> None:
    """Accept any value that can be decoded."""


_UINT: Final = _of_type(UInt, "uint")
_BOOL: Final = _of_type(bool, "boolean")
_MAP: Final = _of_type(dict, "map")
_TAG: Final = _of_type(bytes, "binary", TAG_BYTES_MAX)
_TRANSACTION: Final = _of_type(bytes, "binary", TRANSACTION_BYTES_MAX)
_RECEIVER_MODE: Final = _number_between(UByte, "ubyte", 0, maximum=1)


def _check_address(value: Any, where: str) -> None:
    """Check that the value is a string that is short enough for an address."""
    if not isinstance(value, str):
        raise Unfit(DECODE, f"{where} is {_type_name(value)}, but must be a string")
    if len(value) > ADDRESS_MAX:
        raise Unfit(
            INVALID, f"{where} has {len(value)} characters; at most {ADDRESS_MAX} are allowed"
        )


class _OneOf:
    """A check of described lists of some composite types; other descriptors are accepted."""

    def __init__(self, *composites: tuple[int, Composite]) -> None:
        self._composites = dict(composites)
        self._codes = {f"amqp:{composite.name}:list": code for code, composite in composites}

    def __call__(self, value: Any, where: str) -> None:
        if not isinstance(value, Described):
            raise Unfit(DECODE, f"{where} is {_type_name(value)}, but must be a described list")
        composite = self._composites.get(_code_in(self._codes, value.descriptor))
        if composite is not None:
            check_fields(composite, value.value)

    def knows(self, value: Any) -> bool:
        """Return True if the value has one of the types."""
        return (
            isinstance(value, Described)
            and _code_in(self._codes, value.descriptor) in self._composites
        )

    def with_numeric_descriptors(self, value: Any) -> Any:
        """Return the value with numeric descriptors in place of symbolic ones, also inside it."""
        if not self.knows(value) or not isinstance(value.value, list):
            return value
        code = _code_in(self._codes, value.descriptor)
        values = _with_numeric_descriptors(self._composites[code], value.value)
        if isinstance(value.descriptor, ULong) and values is value.value:
            return value
        return Described(ULong(code), values)


def _code_in(codes: Mapping[str, int], descriptor: Any) -> int:
    """Return the code of a descriptor that is a number or one of the symbols in ``codes``; -1 for
    any other."""
    # A descriptor may have any type, also an unhashable one: test the type before the look-up.
    if isinstance(descriptor, ULong):
        return int(descriptor)
    return codes.get(descriptor, -1) if isinstance(descriptor, Symbol) else -1


# --- composites ---------------------------------------------------------------------------

ERROR: Final = Composite(
    "error",
    (
        Field("condition", _of_type(Symbol, "symbol", CONDITION_MAX), is_mandatory=True),
        Field("description", _of_type(str, "string", DESCRIPTION_MAX)),
        Field("info", _MAP),
    ),
)
_ERROR: Final = _OneOf((0x1D, ERROR))

_RECEIVED: Final = Composite(
    "received",
    (
        Field("section-number", _UINT, is_mandatory=True),
        Field("section-offset", _of_type(ULong, "ulong"), is_mandatory=True),
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

_EXPIRES: Final = _one_of_symbols("link-detach", "session-end", "connection-close", "never")
_TERMINUS: Final = (
    Field("address", _check_address),
    Field("durable", _number_between(UInt, "uint", 0, maximum=2)),
    Field("expiry-policy", _EXPIRES),
    Field("timeout", _UINT),
    Field("dynamic", _BOOL),
    Field("dynamic-node-properties", _MAP),
)
SOURCE: Final = Composite(
    "source",
    (
        *_TERMINUS,
        Field("distribution-mode", _of_type(Symbol, "symbol")),
        Field("filter", _MAP),
        Field("default-outcome", _OneOf(*OUTCOMES)),
        Field("outcomes", _check_symbols),
        Field("capabilities", _check_symbols),
    ),
)
TARGET: Final = Composite("target", (*_TERMINUS, Field("capabilities", _check_symbols)))
COORDINATOR: Final = Composite("coordinator", (Field("capabilities", _check_symbols),))

_SOURCES: Final = _OneOf((0x28, SOURCE))
_TARGETS: Final = _OneOf((0x29, TARGET), (0x30, COORDINATOR))

DECLARE: Final = Composite("declare", (Field("global-id", _accept_any),))
DISCHARGE: Final = Composite(
    "discharge", (Field("txn-id", _TRANSACTION, is_mandatory=True), Field("fail", _BOOL))
)

_SHARED: Final = (
    Field("offered-capabilities", _check_symbols),
    Field("desired-capabilities", _check_symbols),
    Field("properties", _MAP),
)

PERFORMATIVES: Final[dict[int, Composite]] = {
    OPEN: Composite(
        "open",
        (
            Field("container-id", _of_type(str, "string", CONTAINER_MAX), is_mandatory=True),
            Field("hostname", _of_type(str, "string", HOST_MAX)),
            Field(
                "max-frame-size",
                _number_between(UInt, "uint", FRAME_BYTES_MIN, maximum=(1 << 32) - 1),
            ),
            Field("channel-max", _of_type(UShort, "ushort")),
            Field("idle-time-out", _UINT),
            Field("outgoing-locales", _check_symbols),
            Field("incoming-locales", _check_symbols),
            *_SHARED,
        ),
    ),
    BEGIN: Composite(
        "begin",
        (
            Field("remote-channel", _of_type(UShort, "ushort")),
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
            Field("name", _of_type(str, "string", LINK_NAME_MAX), is_mandatory=True),
            Field("handle", _UINT, is_mandatory=True),
            Field("role", _BOOL, is_mandatory=True),
            Field("snd-settle-mode", _number_between(UByte, "ubyte", 0, maximum=2)),
            Field("rcv-settle-mode", _RECEIVER_MODE),
            Field("source", _SOURCES),
            Field("target", _TARGETS),
            Field("unsettled", _MAP),
            Field("incomplete-unsettled", _BOOL),
            Field("initial-delivery-count", _UINT),
            Field("max-message-size", _of_type(ULong, "ulong")),
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

_CODES: Final = {f"amqp:{composite.name}:list": code for code, composite in PERFORMATIVES.items()}


# --- reading ------------------------------------------------------------------------------


class Performative(NamedTuple):
    """A decoded performative. :func:`check_performative` checks its fields."""

    code: int
    values: list[Any]
    """One value for each field of the standard; None for absent fields."""
    begin: int
    """Offset of the list of fields."""
    end: int


def performative_of(data: Bytes, offset: int) -> Performative:
    """Decode the performative at an offset. Raises ``RemoteProtocolViolation``."""
    if data[offset : offset + 1] != b"\x00":
        raise RemoteProtocolViolation("an AMQP frame has no performative")
    descriptor, begin = read(data, offset + 1)
    code = _code_in(_CODES, descriptor)
    if code not in PERFORMATIVES:
        raise RemoteProtocolViolation(
            f"an AMQP frame has an unknown performative: {str(descriptor)[:40]!r}"
        )
    values, end = read(data, begin)
    if not isinstance(values, list):
        raise RemoteProtocolViolation(f"a performative is {_type_name(values)}, not a list")
    return Performative(code, values, begin, end)


def check_performative(performative: Performative) -> list[Any]:
    """Check the fields and return them, with None for absent fields. Raises :class:`Unfit`."""
    composite = PERFORMATIVES[performative.code]
    check_fields(composite, performative.values)
    values = performative.values + [None] * (len(composite.fields) - len(performative.values))
    if performative.code == ATTACH and values[2] is False and values[9] is None:
        raise Unfit(DECODE, "initial-delivery-count of attach is missing; a sender must set it")
    return values


def with_numeric_descriptors(performative: Performative) -> list[Any]:
    """Return the fields with numeric descriptors in place of symbolic ones.

    The standard gives each type both, but Proton knows only numbers in states, outcomes, sources
    and targets. Without symbolic descriptors the list itself is returned. The fields need not be
    checked yet.
    """
    return _with_numeric_descriptors(PERFORMATIVES[performative.code], performative.values)


def _with_numeric_descriptors(composite: Composite, values: list[Any]) -> list[Any]:
    changed: dict[int, Any] = {}
    for index, (field, value) in enumerate(zip(composite.fields, values, strict=False)):
        if isinstance(field.check, _OneOf) and value is not None:
            replacement = field.check.with_numeric_descriptors(value)
            if replacement is not value:
                changed[index] = replacement
    return [changed.get(index, value) for index, value in enumerate(values)] if changed else values


def unknown_terminus(attach: Sequence[Any]) -> str:
    """Name the terminus of an attach whose type the standard does not define, and its descriptor;
    empty if both types are standard. The fields must have been checked."""
    for role, index, kinds in (("source", 5, _SOURCES), ("target", 6, _TARGETS)):
        if attach[index] is not None and not kinds.knows(attach[index]):
            return f"{role} of type {str(attach[index].descriptor)[:40]}"
    return ""


def encode_close(
    condition: str, description: str, info: Mapping[Symbol, Any] | None = None
) -> bytes:
    """Encode a close frame with an error; ``info`` is the error's map of details."""
    error = [encode(Symbol(condition)), encode(description)]
    if info:
        error.append(encode(dict(info)))
    return _encode_frame(b"\x00\x53\x18" + encode_list([b"\x00\x53\x1d" + encode_list(error)]))


def encode_open(container: str) -> bytes:
    """Encode an open frame that contains only the container's name."""
    return _encode_frame(b"\x00\x53\x10" + encode_list([encode(container)]))


def _encode_frame(body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body


def check_fields(composite: Composite, values: Any) -> None:
    """Check the fields of a composite value. Raises :class:`Unfit` for the first invalid field."""
    name, fields = composite.name, composite.fields
    if not isinstance(values, list):
        raise Unfit(DECODE, f"{name} is {_type_name(values)}, but must be a list")
    if len(values) > len(fields):
        raise Unfit(DECODE, f"{name} has {len(values)} fields; the standard defines {len(fields)}")
    for index, field in enumerate(fields):
        value = values[index] if index < len(values) else None
        where = f"{field.name} of {name}"
        if value is not None:
            try:
                # The type is checked first: this check is cheaper, and its error is clearer.
                field.check(value, where)
                check_arrays(value)
            except RemoteProtocolViolation as error:
                raise Unfit(DECODE, f"{where}: {error}") from None
        elif field.is_mandatory:
            raise Unfit(DECODE, f"{where} is missing, but is required")
