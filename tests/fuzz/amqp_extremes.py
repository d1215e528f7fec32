"""Well-formed frames of AMQP whose values are extreme: each field of each performative, of what
they carry, of a sign-in and of a message, by itself.

The fields are those of the tables that frames are read by, the values those of ``values.py`` in
each type AMQP has; what a field's own check does not take has to be answered with an error.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from packages.amqp.tests import frames
from packages.amqp.tests.frames import AMQP, NULL, SASL, SASL_INIT, Raw, frame, opened, said
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
"""What the realm says when a connection opens."""
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
"""Described values within each other, in little space."""


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
"""Descriptors of any type; the standard has symbols and numbers of 64 bits."""


def _nested_arrays(levels: int) -> Raw:
    value = Array(1, b"\x40")
    for _ in range(levels):
        value = Array(1, encode(Array(value.count, value.raw)))
    return Raw(encode(value))


_DEEP_ARRAYS: Final = _nested_arrays(3_000)
"""Arrays within each other."""


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
        *(Described(each, []) for each in DESCRIPTORS),
    ),
    (Array(1, b"\xa3\x01x"), Array(9, b"\xa3\x01x"), Array(2**32 - 1, b"\x40")),
    (Decimal(bytes(4)), *(Decimal(b"\xff" * size) for size in (4, 8, 16))),
    (_DEEP,),
    (_DEEP_ARRAYS,),
)
"""Values of each type; the first of a type is nothing special."""


class Case(NamedTuple):
    what: str
    data: bytes
    """The whole conversation."""
    is_refused: bool = False
    """Whether it has to be answered with an error."""


# --- what is there to be asked about -----------------------------------------------------

OPEN: Final = ("fuzz", "host", UInt(65_536), UShort(10), UInt(30_000))
BEGIN: Final = (None, UInt(0), UInt(2_048), UInt(2_048))
QUEUE: Final = frames.terminus(0x29, "work", capability="queue")
FROM_QUEUE: Final = frames.terminus(0x28, "work", capability="queue")
TO_COORDINATOR: Final = Raw(frames.performative(frames.COORDINATOR))
ENDS: Final = said(frames.DETACH, UInt(0), True) + said(frames.END) + said(frames.CLOSE)
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
    """Where a composite comes in a conversation, and what is usual there."""

    before: bytes
    usual: Sequence[Any]
    wrap: Callable[[Raw], bytes]
    """From the composite to the frames it comes in."""
    after: bytes


def _as(code: int, *, payload: bytes = b"") -> Callable[[Raw], bytes]:
    return lambda made: frame(made.data + payload)


def _within(code: int, *values: Any, at: int, payload: bytes = b"") -> Callable[[Raw], bytes]:
    """As one field of a performative."""

    def wrap(made: Raw) -> bytes:
        return said(code, *[made if i == at else v for i, v in enumerate(values)], payload=payload)

    return wrap


_TERMINUS: Final = ("work", UInt(0), None, UInt(0), False, None)
_BODY: Final = frames.message()
_HELD: Final = opened() + READ
_LATER: Final = frames.flow(1, 5) + ENDS


def _places() -> Iterator[tuple[int, Composite, Place]]:
    """Every composite there is, by its code."""
    whole = {
        0x10: Place(AMQP, OPEN, _as(0x10), after=said(0x11, *BEGIN) + READ + ENDS),
        0x11: Place(AMQP + said(0x10, *OPEN), BEGIN, _as(0x11), after=READ + ENDS),
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
        0x16: Place(_HELD, (UInt(1), True), _as(0x16), after=said(0x17) + said(0x18)),
        0x17: Place(_HELD, (), _as(0x17), after=said(0x18)),
        0x18: Place(_HELD, (), _as(0x18), after=b""),
    }
    for code, composite in PERFORMATIVES.items():
        yield code, composite, whole[code]
    source = _within(0x12, *_attach(), at=5)
    yield 0x28, SOURCE, Place(opened(), _TERMINUS, source, after=frames.flow(3, 5) + READ + ENDS)
    target = _within(0x12, *_attach(role=False), at=6)
    after = frames.transfer(3, 0, _BODY) + READ + ENDS
    yield 0x29, TARGET, Place(opened(), _TERMINUS, target, after=after)
    yield 0x30, COORDINATOR, Place(opened(), (), target, after=READ + ENDS)
    yield (
        0x1D,
        ERROR,
        Place(
            _HELD,
            (Symbol("c"), "d", {}),
            _within(0x16, UInt(1), True, None, at=2),
            after=said(0x18),
        ),
    )
    state = _within(0x15, True, UInt(0), UInt(0), True, None, at=4)
    for code, composite in (*OUTCOMES, (0x34, TRANSACTIONAL)):
        yield code, composite, Place(_HELD, (), state, after=_LATER)
    for code, composite in ((0x31, DECLARE), (0x32, DISCHARGE)):
        yield code, composite, Place(opened() + DECLARING, (), _to_coordinator, after=ENDS)


def _to_coordinator(made: Raw) -> bytes:
    return frames.transfer(0, 0, section(0x77, made.data))


# --- the cases ---------------------------------------------------------------------------


def names() -> list[str]:
    return [*(composite.name for _, composite, _ in _places()), "sasl", "message"]


def cases(name: str) -> Iterator[Case]:
    """Conversations about one composite: as usual, and with one field extreme."""
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
            for at, field in enumerate(composite.fields):
                for value in _fitting(composite, at, usual):
                    values = [*usual[:at], value, *usual[at + 1 :]]
                    yield _case(
                        f"{field.name} of {name}", code, composite, place=place, values=values
                    )


def _descriptors(name: str, code: int, place: Place, usual: Sequence[Any]) -> Iterator[Case]:
    """A composite by its symbol, by the long form of its code, and by what describes nothing."""
    encoded = encode_list([each.data if isinstance(each, Raw) else encode(each) for each in usual])
    symbol, long = encode(Symbol(f"amqp:{name}:list")), b"\x80" + code.to_bytes(8, "big")
    for descriptor in (symbol, long):
        made = Raw(b"\x00" + descriptor + encoded)
        yield Case(f"{name} by {descriptor!r}", place.before + place.wrap(made) + place.after)
    for other in DESCRIPTORS:
        own = place.wrap(Raw(b"\x00" + encode(other) + encoded))
        is_refused = code in PERFORMATIVES or code in (0x28, 0x29, 0x30)
        after = frame(b"") if is_refused else place.after
        yield Case(f"{name} by {other!r}", place.before + own + after, is_refused)


def _mandatory(field: Any) -> Any:
    """What there has to be a value of, and nobody has said which."""
    if not field.is_mandatory:
        return None
    return next(group[0] for group in GROUPS if not _refused(field, group[0]))


def _refused(field: Any, value: Any) -> bool:
    try:
        field.check(value, field.name)
    except (Unfit, RemoteProtocolViolation):
        return True
    return False


def _fitting(composite: Composite, at: int, usual: Sequence[Any]) -> Iterator[Any]:
    """All values of the types that a field takes, one of each other, and none."""
    yield None
    for group in GROUPS:
        if isinstance(group[0], Raw) or _refused(composite.fields[at], group[0]):
            yield group[0]
        else:
            yield from group


def _case(what: str, code: int, composite: Composite, place: Place, values: Sequence[Any]) -> Case:
    encoded = [each.data if isinstance(each, Raw) else encode(each) for each in values]
    made = Raw(frames.performative(code, *encoded))
    own = place.wrap(made)
    is_refused = _is_refused(composite, made.data, own)
    after = frame(b"") if is_refused else place.after  # who is refused waits to be told so
    return Case(what, place.before + own + after, is_refused)


def _is_refused(composite: Composite, made: bytes, own: bytes) -> bool:
    if len(own) > FRAME_BYTES_MAX:
        return True
    try:
        described, _ = read(made)
        check_fields(composite, described.value)
    except (Unfit, RemoteProtocolViolation):
        return True
    return False


def _each() -> Iterator[Any]:
    for group in GROUPS:
        yield from group


def _sign_ins() -> Iterator[Case]:
    """Mechanism, first response and host of a sign-in, and what a challenge is answered with."""
    for at in range(3):
        for value in _each():
            fields: list[Any] = [Symbol("PLAIN"), b"\0u\0p", "host"]
            fields[at] = value
            yield Case(f"field {at} of sasl-init", SASL + _sasl(SASL_INIT, *fields) + WORKING)
    for value in _each():
        begun = SASL + _sasl(SASL_INIT, Symbol("SCRAM-SHA-256"), b"n,,n=u,r=abc")
        yield Case("sasl-response", begun + _sasl(0x43, value))


def _sasl(code: int, *values: Any) -> bytes:
    encoded = [each.data if isinstance(each, Raw) else encode(each) for each in values]
    return frame(frames.performative(code, *encoded), kind=1)


FIELDS: Final = {0x70: 5, 0x73: 13}
"""How many fields header and properties have (3.2)."""
MAPS: Final = (0x71, 0x72, 0x74, 0x78)
"""Annotations, application properties, footer."""
ANNOTATIONS: Final = (
    "x-opt-delivery-time",
    "x-opt-delivery-delay",
    "x-opt-penstock-properties",
)
"""Annotations that the realm understands."""


def _messages() -> Iterator[Case]:
    for value in (each for group in GROUPS for each in {0: group[0], 1: group[-1]}.values()):
        encoded = value.data if isinstance(value, Raw) else encode(value)
        for code, count in FIELDS.items():
            for at in range(count):
                fields = [NULL] * at + [encoded]
                yield _sent(f"field {at} of section 0x{code:x}", code, encode_list(fields))
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
    """In several frames, if it does not fit into one."""
    body = section(0x77, encode("x"))
    own = section(code, encoded)
    message = own if code == 0x77 else own + body if code < 0x77 else body + own
    step = FRAME_BYTES_MAX - 1_024
    parts = [message[at : at + step] for at in range(0, len(message), step)]
    sent = b"".join(
        frames.transfer(0, 0, part, more=number < len(parts))
        for number, part in enumerate(parts, 1)
    )
    data = opened() + frames.sender("s", 0, QUEUE) + sent
    return Case(what, data + frames.receiver("r", 1, FROM_QUEUE) + ENDS)


# --- asking ------------------------------------------------------------------------------


def errors_in(heard: bytes) -> list[str]:
    """The conditions that the realm ends links, sessions and connections with."""
    return [str(error) for _, values in _heard(heard) for error in _errors_within(values)]


def _errors_within(value: Any) -> Iterator[str]:
    """Also those of a message that is rejected."""
    if isinstance(value, Described):
        if value.descriptor == 0x1D:
            yield value.value[0]
        yield from _errors_within(value.value)
    elif isinstance(value, list):
        for each in value:
            yield from _errors_within(each)


def _heard(heard: bytes) -> Iterator[tuple[int, list[Any]]]:
    """The performatives of its frames."""
    at = 0
    while at < len(heard):
        if heard[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(heard[at : at + 4], "big")
        if heard[at + 5] == 0 and size > 8:
            found = performative_of(heard[at : at + size], 4 * heard[at + 4])
            yield found.code, found.values
        at += size


def delivers(heard: bytes) -> bool:
    """Whether a message has come."""
    return any(code == 0x14 for code, _ in _heard(heard))


def check(case: Case, heard: bytes) -> None:
    """Raises ``AssertionError`` for an answer that is none, or of a fault of the realm."""
    errors = errors_in(heard)
    assert "amqp:internal-error" not in errors, f"{case.what}: {errors}"
    assert errors or not case.is_refused, f"{case.what} is taken"


@lru_cache
def served() -> AmqpServed:
    made = AmqpServed()
    atexit.register(made.close)
    return made
