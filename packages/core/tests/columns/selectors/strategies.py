"""Random events, and random expressions about them, for Hypothesis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from penstock_core.columns.selectors.expressions import (
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Compare,
    Comparison,
    DataLength,
    DataText,
    Distance,
    DistanceUnit,
    Each,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Literal,
    Matches,
    Negative,
    Not,
    Now,
    Or,
    Reference,
    Text,
    Truth,
)

INT64_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

INTEGERS = st.one_of(
    st.integers(-3, 4),
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, INT64_MAX, INT64_MAX - 1, -INT64_MAX, 2**40]),
    st.just(-(2**63)),
)
FLOATS = st.sampled_from(
    [0.0, -0.0, 1.0, 0.5, -2.5, 3.0, 2.0**53, 2.0**53 + 2, 2.0**63, -(2.0**63), 1e300, 1e19]
)
WILD_FLOATS = st.one_of(FLOATS, st.sampled_from([float("nan"), float("inf"), float("-inf")]))
ISO_TEXTS = ["1970-01-01T00:00:00.001Z", "1970-01-01T01:00:00.002+01:00", "1969-12-31"]
TEXTS = st.one_of(
    st.text("ab%_\\é\n", max_size=3),
    st.sampled_from([*ISO_TEXTS, "it's", "NOT", "1"]),
    st.sampled_from(["a/b", "/", "a/", "$a/b", "a/b/é", "a\n/b", "$"]),
)
TIMES = st.integers(-2000, 3000).map(lambda us: EPOCH + timedelta(microseconds=us))
BYTES = st.sampled_from([b"", b"a", b"ab\xff", "aé".encode(), b"\xed\xa0\x80", b"\xf0\x90\x80\x80"])

SCALARS = st.one_of(st.booleans(), INTEGERS, WILD_FLOATS, TEXTS, TIMES, BYTES)


def _nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, values, st.none())


def _lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(_nullable(values), max_size=3)


CONTACTS = st.fixed_dictionaries(
    {}, optional={"k": _nullable(st.one_of(INTEGERS, TEXTS)), "p": _nullable(_lists(INTEGERS))}
)
NESTED = st.fixed_dictionaries(
    {}, optional={"k": _nullable(SCALARS), "l": _nullable(_lists(TEXTS)), "in": CONTACTS}
)
PROPERTIES = st.fixed_dictionaries(
    {
        "n": _nullable(st.one_of(INTEGERS, WILD_FLOATS)),
        "i": _nullable(INTEGERS),
        "s": _nullable(TEXTS),
        "l": _nullable(
            st.one_of(_lists(INTEGERS), _lists(TEXTS), _lists(st.booleans()), _lists(SCALARS))
        ),
        "m": _nullable(_lists(CONTACTS)),
    },
    optional={
        "b": _nullable(st.booleans()),
        "any": _nullable(st.one_of(SCALARS, _lists(TEXTS))),
        "when": _nullable(TIMES),
        "d": _nullable(NESTED),
        "latitude": st.sampled_from([0, 51.5, -90.0, 91.0, "north", None]),
        "longitude": st.sampled_from([0, -0.1, 180, 181, None]),
    },
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "message_id": _nullable(TEXTS),
        "correlation_id": _nullable(TEXTS),
        "type": _nullable(TEXTS),
        "delivery_mode": st.sampled_from([None, 0, 1, 2]),
    },
)
EVENTS = st.fixed_dictionaries(
    {"data": BYTES, "properties": _nullable(PROPERTIES)},
    optional={
        "overflow": st.sets(st.sampled_from(["n", "s", "l", "m", "b", "any", "when", "d"])),
        "tag": _nullable(TEXTS),
        "headers": _nullable(HEADERS),
        "persistent": _nullable(st.booleans()),
        "priority": _nullable(st.integers(0, 9)),
    },
)


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return events of one batch: a stored batch with ids and times, or a body without them."""
    events: list[dict[str, Any]] = draw(st.lists(EVENTS, max_size=8))
    if draw(st.booleans()):
        for event_id, event in enumerate(events):
            event |= {"event_id": event_id, "published": draw(TIMES)}
    return events


PATHS = [
    *[(name,) for name in ("n", "i", "s", "b", "any", "when", "absent")],
    *[("d", name) for name in ("k", "l", "absent")],
    ("d",),
    ("l",),
    ("l", 0),
    ("l", 2),
    ("any", 1),
    ("m", 0, "k"),
    ("m", 1, "p", 0),
    ("d", "in", "k"),
    *[(name,) for name in ("event_id", "tag", "published", "JMSMessageID", "JMSType")],
    *[(name,) for name in ("JMSCorrelationID", "JMSPriority", "JMSTimestamp", "JMSDeliveryMode")],
]
ARRAY_PATHS = [
    ("l", Each()),
    ("any", Each()),
    ("d", "l", Each()),
    ("d", "in", "p", Each()),
    ("m", Each(), "k"),
    ("m", Each()),
    ("m", Each(), "p", Each()),
    ("m", Each(), "p", 1),
    ("tag", Each()),
    ("absent", Each(), "k"),
]
REFERENCES = st.sampled_from(PATHS).map(Reference)
ARRAYS = st.sampled_from(ARRAY_PATHS).map(Reference)
LITERALS: st.SearchStrategy[Literal] = st.one_of(
    INTEGERS.map(Integer), FLOATS.map(Float), TEXTS.map(Text), st.booleans().map(Truth)
)
UNIFORM_OPTIONS = st.one_of(
    *[
        st.lists(options, min_size=1, max_size=3)
        for options in (INTEGERS.map(Integer), TEXTS.map(Text), LITERALS)
    ]
).map(tuple)
FUNCTIONS: st.SearchStrategy[Expression] = st.one_of(
    st.just(Now()),
    st.just(DataLength()),
    st.builds(DataText, st.integers(0, 3), st.integers(0, 3)),
    st.builds(
        Distance,
        st.sampled_from([0.0, 50.0]),
        st.sampled_from([1.5, -3.0]),
        st.sampled_from(DistanceUnit),
    ),
)


def _sums(leaves: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.builds(
        Arithmetic,
        st.sampled_from(ArithmeticOperator),
        leaves,
        st.one_of(REFERENCES, LITERALS),
    )


PLAIN = st.one_of(REFERENCES, REFERENCES, LITERALS, FUNCTIONS)


@st.composite
def values(draw: st.DrawFn) -> Expression:
    """Operands of either side of a comparison, except array elements."""
    return draw(st.one_of(PLAIN, PLAIN, PLAIN, _sums(PLAIN), REFERENCES.map(Negative)))


@st.composite
def subjects(draw: st.DrawFn) -> Expression:
    """Operands of one side of a comparison only."""
    return draw(st.one_of(values(), values(), ARRAYS, _sums(ARRAYS)))


def _patterns() -> st.SearchStrategy[tuple[str, str]]:
    plain = st.text("ab%_\\é\n", max_size=4).map(lambda pattern: (pattern, ""))
    escaped = st.lists(st.sampled_from(["a", "%", "_", "!%", "!_", "!!", "!b"]), max_size=4)
    return st.one_of(plain, escaped.map(lambda parts: ("".join(parts), "!")))


_LEVELS = st.sampled_from(["a", "b", "", "+", "+", "$a", "é", "a\n", "$", "."])
FILTERS = st.lists(_LEVELS, min_size=1).flatmap(
    lambda levels: st.sampled_from(["/".join(levels) or "a", "/".join([*levels, "#"])])
)
"""Topic filters."""
NUMBERS = st.sampled_from([("n",), ("i",), ("l", Each()), ("m", Each(), "k")]).map(Reference)
WORDS = st.sampled_from([("s",), ("tag",), ("l", Each())]).map(Reference)
NUMERALS = st.one_of(INTEGERS.map(Integer), FLOATS.map(Float))

TYPED: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Compare, st.sampled_from(Comparison), NUMBERS, NUMERALS),
    st.builds(Compare, st.sampled_from(Comparison), NUMBERS, _sums(st.just(Reference(("n",))))),
    st.builds(Compare, st.sampled_from(Comparison), WORDS, TEXTS.map(Text)),
    st.builds(Between, NUMBERS, NUMERALS, NUMERALS, st.booleans()),
    st.builds(In, st.one_of(NUMBERS, WORDS), UNIFORM_OPTIONS, st.booleans()),
    st.builds(Matches, WORDS, FILTERS, st.booleans()),
    st.builds(
        lambda subject, pattern, negated: Like(subject, pattern[0], pattern[1], negated=negated),
        WORDS,
        _patterns(),
        st.booleans(),
    ),
)
ANY: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Compare, st.sampled_from(Comparison), subjects(), values()),
    st.builds(Compare, st.sampled_from(Comparison), values(), subjects()),
    st.builds(Between, subjects(), values(), values(), st.booleans()),
    st.builds(In, subjects(), UNIFORM_OPTIONS, st.booleans()),
    st.builds(
        lambda subject, pattern, negated: Like(subject, pattern[0], pattern[1], negated=negated),
        subjects(),
        _patterns(),
        st.booleans(),
    ),
    st.builds(Matches, subjects(), FILTERS, st.booleans()),
    st.builds(IsNull, subjects(), st.booleans()),
    st.one_of(REFERENCES, ARRAYS),
    st.booleans().map(Truth),
)


@st.composite
def predicates(draw: st.DrawFn) -> Expression:
    """Return predicates. Half of them compare values of matching types; the others are mostly
    unknown."""
    return draw(TYPED if draw(st.booleans()) else ANY)


def _flat(kind: type[And] | type[Or], operands: list[Expression]) -> Expression:
    flat: list[Expression] = []
    for operand in operands:
        flat.extend(operand.operands if isinstance(operand, kind) else [operand])
    return kind(tuple(flat))


def _grown(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(parts, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda operands: _flat(And, operands)),
        several.map(lambda operands: _flat(Or, operands)),
        parts.map(Not),
        st.builds(Compare, st.sampled_from(Comparison), parts, st.one_of(LITERALS, REFERENCES)),
    )


EXPRESSIONS = st.recursive(predicates(), _grown, max_leaves=5)
