"""Well-formed AMQP frames with extreme values: one at a time for each field of each performative,
of the composites in it, of a sign-in and of a message.

The fields come from the tables that the reader of frames uses, the values from ``values.py`` in
every AMQP type. A value that a field's own check refuses must be answered with an error.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from packages.amqp.tests import frames
from packages.amqp.tests.frames import AMQP, NULL, SASL, SASL_INIT, Raw, frame, frame_of, opened
from penstock_amqp.wire.performatives import (
    COORDINATOR,
    DECLARE,
    DISCHARGE,
    ERROR,
    OUTCOMES,
    PERFORMATIVES,
    SOURCE,
    TARGET,
    TRANSACTIONAL,
    Composite,
    Unfit,
    check_fields,
    performative_of,
)
from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import (
    Array,
    Byte,
    Decimal,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
    encode_list,
    read,
)
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from tests.fuzz.amqp import AmqpServed
from tests.fuzz.values import BYTES, FLOATS, INTEGERS, MANY, TEXTS

FRAME_BYTES_MAX: Final = 65_536
"""The frame size that the realm states in its open."""
RANGES: Final[dict[type[int], tuple[int, int]]] = {
    **{
        kind: (0, 2**bits - 1) for kind, bits in ((UByte, 8), (UShort, 16), (UInt, 32), (ULong, 64))
    },
    **{
        kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for kind, bits in ((Byte, 8), (Short, 16), (Int, 32), (int, 64), (Timestamp, 64))
    },
}
_DEEP: Final = Raw(b"\x00\x53\x24" * 20_000 + b"\x45")
"""Described values inside each other, in few bytes."""


DESCRIPTORS: Final[Sequence[Any]] = (
    [],
    [1, 2],
    {},
    {"a": 1},
    None,
    True,
    "amqp:accepted:list",
    UInt(0x24),
    0x24,
    1.5,
    b"x",
    UUID(int=0),
    Described(ULong(1), ULong(0x24)),
    Symbol("amqp:accepted:list"),
    Symbol(""),
)
"""Descriptors of any type; the standard only has symbols and numbers of 64 bits."""


def _nested_arrays(levels: int) -> Raw:
    value = Array(1, b"\x40")
    for _ in range(levels):
        value = Array(1, encode(Array(value.count, value.raw)))
    return Raw(encode(value))


_DEEP_ARRAYS: Final = _nested_arrays(3_000)
"""Arrays inside each other."""


def _integers(kind: type[int]) -> list[Any]:
    least, most = RANGES[kind]
    fitting = [kind(n) for n in INTEGERS if least <= n <= most]
    return [kind(1), *sorted({fitting[0], *fitting[-3:], kind(least), kind(most)})]


GROUPS: Final[Sequence[Sequence[Any]]] = (
    *map(_integers, RANGES),
    (1.5, *FLOATS),
    (Float32(1.5), *map(Float32, (-1.0, float("inf"), float("nan")))),
    (True, False),
    ("a", *TEXTS),
    (Symbol("a"), *(Symbol(text) for text in TEXTS if text.isascii())),
    (b"a", *BYTES, bytes(33)),
    (UUID(int=0),),
    ([], [None] * MANY, [[[]]]),
    ({}, {Symbol("k"): "v"}, {Symbol(f"k{n}"): n for n in range(MANY)}, {1.5: {b"": None}}),
    (
        Described(ULong(0x24), []),
        Described(Symbol("x"), "y"),
        Described(ULong(2**64 - 1), []),
        *(Described(descriptor, []) for descriptor in DESCRIPTORS),
    ),
    (Array(1, b"\xa3\x01x"), Array(9, b"\xa3\x01x"), Array(2**32 - 1, b"\x40")),
    (Decimal(bytes(4)), *(Decimal(b"\xff" * size) for size in (4, 8, 16))),
    (_DEEP,),
    (_DEEP_ARRAYS,),
)
"""Values of each type; the first of each type is ordinary."""


class Case(NamedTuple):
    what: str
    data: bytes
    """All bytes of the conversation."""
    is_refused: bool = False
    """Whether it must be answered with an error."""


# --- the objects of the conversations ---------------------------------------------------

OPEN: Final = ("fuzz", "host", UInt(65_536), UShort(10), UInt(30_000))
BEGIN: Final = (None, UInt(0), UInt(2_048), UInt(2_048))
QUEUE: Final = frames.terminus(0x29, "work", capability="queue")
FROM_QUEUE: Final = frames.terminus(0x28, "work", capability="queue")
TO_COORDINATOR: Final = Raw(frames.performative(frames.COORDINATOR))
ENDS: Final = frame_of(frames.DETACH, UInt(0), True) + frame_of(frames.END) + frame_of(frames.CLOSE)
PUBLISHED: Final = frames.sender("s", 0, QUEUE) + frames.transfer(0, 0, frames.message())
READ: Final = PUBLISHED + frames.receiver("r", 1, FROM_QUEUE)
DECLARING: Final = frames.sender("t", 0, TO_COORDINATOR)
WORKING: Final = opened() + READ + ENDS


def _attach(*, source: Any = None, target: Any = None, role: bool = True) -> list[Any]:
    return [
        "l",
        UInt(3),
        role,
        UByte(0),
        UByte(0),
        source or FROM_QUEUE,
        target or QUEUE,
        None,
        None,
        UInt(0),
    ]


class Place(NamedTuple):
    """A composite's position in a conversation, and its ordinary values."""

    before: bytes
    usual: Sequence[Any]
    wrap: Callable[[Raw], bytes]
    """Return the frames that contain the encoded composite."""
    after: bytes


def _as(code: int, *, payload: bytes = b"") -> Callable[[Raw], bytes]:
    return lambda composite_bytes: frame(composite_bytes.data + payload)


def _within(
    code: int, *values: Any, field_index: int, payload: bytes = b""
) -> Callable[[Raw], bytes]:
    """Wrap a composite as one field of a performative."""

    def wrap(composite_bytes: Raw) -> bytes:
        return frame_of(
            code,
            *[composite_bytes if i == field_index else v for i, v in enumerate(values)],
            payload=payload,
        )

    return wrap


_TERMINUS: Final = ("work", UInt(0), None, UInt(0), False, None)
_BODY: Final = frames.message()
_HELD: Final = opened() + READ
_LATER: Final = frames.flow(1, 5) + ENDS


def _places() -> Iterator[tuple[int, Composite, Place]]:
    """Yield every composite, with its code."""
    performatives = {
        0x10: Place(AMQP, OPEN, _as(0x10), after=frame_of(0x11, *BEGIN) + READ + ENDS),
        0x11: Place(AMQP + frame_of(0x10, *OPEN), BEGIN, _as(0x11), after=READ + ENDS),
        0x12: Place(opened(), _attach(), _as(0x12), after=frames.flow(3, 5) + READ + ENDS),
        0x13: Place(
            _HELD,
            (*[UInt(0), UInt(2_048)] * 2, UInt(1), UInt(0), UInt(5), None, False),
            _as(0x13),
            after=_LATER,
        ),
        0x14: Place(
            _HELD,
            (UInt(0), UInt(1), b"1", UInt(0), False, False),
            _as(0x14, payload=_BODY),
            after=_LATER,
        ),
        0x15: Place(
            _HELD,
            (True, UInt(0), UInt(0), True, Raw(frames.performative(frames.ACCEPTED))),
            _as(0x15),
            after=_LATER,
        ),
        0x16: Place(_HELD, (UInt(1), True), _as(0x16), after=frame_of(0x17) + frame_of(0x18)),
        0x17: Place(_HELD, (), _as(0x17), after=frame_of(0x18)),
        0x18: Place(_HELD, (), _as(0x18), after=b""),
    }
    for code, composite in PERFORMATIVES.items():
        yield code, composite, performatives[code]
    source = _within(0x12, *_attach(), field_index=5)
    yield 0x28, SOURCE, Place(opened(), _TERMINUS, source, after=frames.flow(3, 5) + READ + ENDS)
    target = _within(0x12, *_attach(role=False), field_index=6)
    after = frames.transfer(3, 0, _BODY) + READ + ENDS
    yield 0x29, TARGET, Place(opened(), _TERMINUS, target, after=after)
    yield 0x30, COORDINATOR, Place(opened(), (), target, after=READ + ENDS)
    yield (
        0x1D,
        ERROR,
        Place(
            _HELD,
            (Symbol("c"), "d", {}),
            _within(0x16, UInt(1), True, None, field_index=2),
            after=frame_of(0x18),
        ),
    )
    state = _within(0x15, True, UInt(0), UInt(0), True, None, field_index=4)
    for code, composite in (*OUTCOMES, (0x34, TRANSACTIONAL)):
        yield code, composite, Place(_HELD, (), state, after=_LATER)
    for code, composite in ((0x31, DECLARE), (0x32, DISCHARGE)):
        yield code, composite, Place(opened() + DECLARING, (), _to_coordinator, after=ENDS)


def _to_coordinator(composite_bytes: Raw) -> bytes:
    return frames.transfer(0, 0, section(0x77, composite_bytes.data))


# --- the cases ---------------------------------------------------------------------------


def names() -> list[str]:
    return [*(composite.name for _, composite, _ in _places()), "sasl", "message"]


def cases(name: str) -> Iterator[Case]:
    """Yield conversations about one composite: with ordinary values, and with one extreme field."""
    if name == "sasl":
        yield from _sign_ins()
    elif name == "message":
        yield from _messages()
    for code, composite, place in _places():
        if composite.name == name:
            usual = [*place.usual, *[None] * (len(composite.fields) - len(place.usual))]
            pairs = zip(composite.fields, usual, strict=True)
            usual = [_mandatory(field) if value is None else value for field, value in pairs]
            yield _case(f"{name} as usual", code, composite, place=place, values=usual)
            yield from _descriptors(name, code, place, usual=usual)
            for index, field in enumerate(composite.fields):
                for value in _fitting(composite, index, usual):
                    values = [*usual[:index], value, *usual[index + 1 :]]
                    yield _case(
                        f"{field.name} of {name}", code, composite, place=place, values=values
                    )


def _descriptors(name: str, code: int, place: Place, usual: Sequence[Any]) -> Iterator[Case]:
    """Yield a composite described by its symbol, by the long form of its code, and by unknown
    descriptors."""
    encoded = encode_list(
        [value.data if isinstance(value, Raw) else encode(value) for value in usual]
    )
    symbol, long = encode(Symbol(f"amqp:{name}:list")), b"\x80" + code.to_bytes(8, "big")
    for descriptor in (symbol, long):
        composite_bytes = Raw(b"\x00" + descriptor + encoded)
        yield Case(
            f"{name} by {descriptor!r}", place.before + place.wrap(composite_bytes) + place.after
        )
    for descriptor_ in DESCRIPTORS:
        frames_ = place.wrap(Raw(b"\x00" + encode(descriptor_) + encoded))
        is_refused = code in PERFORMATIVES or code in (0x28, 0x29, 0x30)
        after = frame(b"") if is_refused else place.after
        yield Case(f"{name} by {descriptor_!r}", place.before + frames_ + after, is_refused)


def _mandatory(field: Any) -> Any:
    """Return a value for a mandatory field without an ordinary value."""
    if not field.is_mandatory:
        return None
    return next(group[0] for group in GROUPS if not _refused(field, group[0]))


def _refused(field: Any, value: Any) -> bool:
    try:
        field.check(value, field.name)
    except (Unfit, RemoteProtocolViolation):
        return True
    return False


def _fitting(composite: Composite, index: int, usual: Sequence[Any]) -> Iterator[Any]:
    """Yield all values of the types that a field takes, one value of each other type, and none."""
    yield None
    for group in GROUPS:
        if isinstance(group[0], Raw) or _refused(composite.fields[index], group[0]):
            yield group[0]
        else:
            yield from group


def _case(what: str, code: int, composite: Composite, place: Place, values: Sequence[Any]) -> Case:
    encoded = [value.data if isinstance(value, Raw) else encode(value) for value in values]
    composite_bytes = Raw(frames.performative(code, *encoded))
    frames_ = place.wrap(composite_bytes)
    is_refused = _is_refused(composite, composite_bytes.data, frames_)
    after = frame(b"") if is_refused else place.after  # a refused client waits for the error
    return Case(what, place.before + frames_ + after, is_refused)


def _is_refused(composite: Composite, composite_bytes: bytes, frames_: bytes) -> bool:
    if len(frames_) > FRAME_BYTES_MAX:
        return True
    try:
        described, _ = read(composite_bytes)
        check_fields(composite, described.value)
    except (Unfit, RemoteProtocolViolation):
        return True
    return False


def _all_values() -> Iterator[Any]:
    for group in GROUPS:
        yield from group


def _sign_ins() -> Iterator[Case]:
    """Yield sign-ins with an extreme mechanism, response or host, and extreme answers to a
    challenge."""
    for index in range(3):
        for value in _all_values():
            fields: list[Any] = [Symbol("PLAIN"), b"\0u\0p", "host"]
            fields[index] = value
            yield Case(f"field {index} of sasl-init", SASL + _sasl(SASL_INIT, *fields) + WORKING)
    for value in _all_values():
        sasl_init = SASL + _sasl(SASL_INIT, Symbol("SCRAM-SHA-256"), b"n,,n=u,r=abc")
        yield Case("sasl-response", sasl_init + _sasl(0x43, value))


def _sasl(code: int, *values: Any) -> bytes:
    encoded = [value.data if isinstance(value, Raw) else encode(value) for value in values]
    return frame(frames.performative(code, *encoded), kind=1)


FIELDS: Final = {0x70: 5, 0x73: 13}
"""Number of fields of header and properties (3.2)."""
MAPS: Final = (0x71, 0x72, 0x74, 0x78)
"""Codes of annotations, application properties and footer."""
ANNOTATIONS: Final = (
    "x-opt-delivery-time",
    "x-opt-delivery-delay",
    "x-opt-penstock-properties",
)
"""Annotations that the realm evaluates."""


def _messages() -> Iterator[Case]:
    for value in (value_ for group in GROUPS for value_ in {0: group[0], 1: group[-1]}.values()):
        encoded = value.data if isinstance(value, Raw) else encode(value)
        for code, count in FIELDS.items():
            for index in range(count):
                fields = [NULL] * index + [encoded]
                yield _sent(f"field {index} of section 0x{code:x}", code, encode_list(fields))
        for code in MAPS:
            yield _sent(f"section 0x{code:x}", code, encoded)
            yield _sent(f"a value in section 0x{code:x}", code, _mapped(b"\xa3\x01k", encoded))
            yield _sent(f"a key in section 0x{code:x}", code, _mapped(encoded, NULL))
        for name in ANNOTATIONS:
            pair = _mapped(encode(Symbol(name)), encoded)
            yield _sent(f"the annotation {name}", 0x72, pair)
        yield _sent("the body", 0x77, encoded)


def _mapped(key: bytes, value: bytes) -> bytes:
    return b"\xd1" + (len(key) + len(value) + 4).to_bytes(4, "big") + b"\0\0\0\x02" + key + value


def _sent(what: str, code: int, encoded: bytes) -> Case:
    """Return a conversation that sends a message, in several frames if it does not fit into one."""
    body = section(0x77, encode("x"))
    extreme_section = section(code, encoded)
    message = (
        extreme_section
        if code == 0x77
        else extreme_section + body
        if code < 0x77
        else body + extreme_section
    )
    step = FRAME_BYTES_MAX - 1_024
    parts = [message[start : start + step] for start in range(0, len(message), step)]
    sent = b"".join(
        frames.transfer(0, 0, part, more=number < len(parts))
        for number, part in enumerate(parts, 1)
    )
    data = opened() + frames.sender("s", 0, QUEUE) + sent
    return Case(what, data + frames.receiver("r", 1, FROM_QUEUE) + ENDS)


# --- checks ---------------------------------------------------------------------------


def errors_in(answer: bytes) -> list[str]:
    """Return the error conditions of links, sessions and connections that the realm has ended."""
    return [
        str(error) for _, values in _performatives_in(answer) for error in _errors_within(values)
    ]


def _errors_within(value: Any) -> Iterator[str]:
    """Yield the errors in a value, also those of a rejected message."""
    if isinstance(value, Described):
        if value.descriptor == 0x1D:
            yield value.value[0]
        yield from _errors_within(value.value)
    elif isinstance(value, list):
        for item in value:
            yield from _errors_within(item)


def _performatives_in(answer: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Yield code and values of each performative."""
    start = 0
    while start < len(answer):
        if answer[start : start + 4] == b"AMQP":
            start += 8
            continue
        size = int.from_bytes(answer[start : start + 4], "big")
        if answer[start + 5] == 0 and size > 8:
            performative = performative_of(answer[start : start + size], 4 * answer[start + 4])
            yield performative.code, performative.values
        start += size


def delivers(answer: bytes) -> bool:
    """Return whether a message was delivered."""
    return any(code == 0x14 for code, _ in _performatives_in(answer))


def check(case: Case, answer: bytes) -> None:
    """Raise ``AssertionError`` if the answer is missing or reports a fault of the realm."""
    errors = errors_in(answer)
    assert "amqp:internal-error" not in errors, f"{case.what}: {errors}"
    assert errors or not case.is_refused, f"{case.what} is accepted"


@lru_cache
def served() -> AmqpServed:
    composite_bytes = AmqpServed()
    atexit.register(composite_bytes.close)
    return composite_bytes
