"""Publish keys keep the newest events of each value and remove no other events (SEM K1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.events.single_event import codec_in_message
from penstock_core.columns.keys.keys import PRUNE_MIN, KeyIndex
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span
from tests.thorough import examples

MISSING = "the property is absent"


def body(*values: Any, name: str = "k") -> pa.RecordBatch:
    rows = [{} if value is MISSING else {name: value} for value in values]
    return body_of_columns([b"x"] * len(rows), properties=rows)


class Channel:
    """A channel with keys: its live ids, and the index that decides which ids are replaced."""

    def __init__(self, **keys: int) -> None:
        self.index = KeyIndex(keys)
        self.live = IdSet()
        self.end = 0

    def publish(self, *bodies: pa.RecordBatch) -> list[int]:
        """Publish the events; return the replaced ids."""
        replaced = self.index.superseded(bodies, self.end, self.live)
        self.index.append(bodies, self.end)
        count = sum(batch.num_rows for batch in bodies)
        self.live.add(Span(self.end, self.end + count))
        self.end += count
        self.live.remove_all(replaced)
        return list(replaced)

    def publish_one(self, batch: pa.RecordBatch) -> list[int]:
        """Publish one event, whose value is read from its message where that is possible."""
        result = self.index.superseded_by_one(reader_of(batch), self.live)
        if result is None:
            return self.publish(batch)
        replaced, event = result
        self.index.append_one(event, self.end)
        self.live.add(Span(self.end, self.end + 1))
        self.end += 1
        self.live.remove_all(replaced)
        return list(replaced)


def reader_of(batch: pa.RecordBatch) -> Callable[[str], Any]:
    """Reads the properties of a single event."""
    form, message = codec_in_message(schema_bytes(batch.schema)), bytes(batch_bytes(batch))

    def value_of(name: str) -> Any:
        if form is None or form.digest_of(message) is None:
            return NotImplemented
        place = form.column_index(name)
        if place is None:
            return NotImplemented
        return None if place < 0 else form.value_in(message, place)

    return value_of


@pytest.mark.spec("K1")
def test_the_last_value_replaces_the_one_before() -> None:
    channel = Channel(k=1)
    channel.publish(body("a", "b"))

    assert channel.publish(body("b", "c", "b", MISSING, "c")) == [1, 2, 3]
    assert list(channel.live) == [0, 4, 5, 6]


@pytest.mark.spec("K1")
def test_each_value_keeps_its_newest_events_up_to_the_depth() -> None:
    channel = Channel(k=2)
    channel.publish(body("a", "b", "a"))

    assert channel.publish(body("a", "b")) == [0]
    assert channel.publish(body("b"), body("b", "b", "a")) == [1, 2, 4, 5]
    assert list(channel.live) == [3, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.spec("K1")
@pytest.mark.parametrize("values", [7, 150])
def test_a_large_batch_replaces_what_its_rows_one_by_one_would(values: int) -> None:
    batched, single = Channel(k=1), Channel(k=1)
    rows = [f"value {number * number % values}" for number in range(300)]
    for batch in (rows, rows[::-1]):
        batched.publish(body(*batch))
        for value in batch:
            single.publish(body(value))

    assert batched.live == single.live


@pytest.mark.spec("K1")
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("values", "is_read"),
    [
        (["a", "b", "a", "é", "b", "a", ""], True),
        ([1, 1.0, 2, 1, 2.0, 0.0, -0.0, 2**53 + 1], True),
        ([True, 1, False, True, "1", b"1", "1", b"1"], True),
        ([MISSING, "a", MISSING, "a"], True),
        ([None, float("nan"), [1], None, [1], float("nan")], False),
    ],
)
def test_events_one_by_one_replace_what_they_would_by_columns(
    depth: int, values: list[Any], is_read: bool
) -> None:
    one_by_one, by_columns = Channel(k=depth, j=1), Channel(k=depth, j=1)
    for value in values:
        event = body(value)
        read = reader_of(event)("k")

        assert one_by_one.publish_one(event) == by_columns.publish(event)
        if is_read:
            assert read == (None if value is MISSING else value)
            assert type(read) is type(None if value is MISSING else value)
    assert list(one_by_one.live) == list(by_columns.live)


@pytest.mark.spec("K1")
def test_each_of_several_keys_looks_for_itself() -> None:
    channel = Channel(k=1, j=2)
    batch_with_both = body_of_columns(
        [b""] * 4, properties=[{"k": 1, "j": 1}, {"k": 2, "j": 1}, {"k": 1, "j": 1}, {"j": 1}]
    )

    assert channel.publish(batch_with_both) == [0, 1]
    assert channel.publish(body(2, 1)) == [2]


@pytest.mark.spec("K1")
@pytest.mark.parametrize("depth", [1, 2])
def test_one_and_one_point_zero_are_one_value_and_true_is_another(depth: int) -> None:
    channel = Channel(k=depth)
    same = [1, 1.0, np.int8(1), np.float32(1)]
    other_bodies = [
        True,
        "1",
        b"1",
        datetime(1970, 1, 1, hour=0, minute=0, second=0, microsecond=1, tzinfo=UTC),
    ]
    for value in [*same, *other_bodies]:
        channel.publish(body(value))

    assert list(channel.live) == [*range(4 - depth, 4), 4, 5, 6, 7]


@pytest.mark.spec("K1")
@pytest.mark.parametrize("value", [None, MISSING, float("nan"), [1], {"a": 1}, [1, "a"], {}])
def test_what_is_no_single_value_is_untouched(value: Any) -> None:
    channel = Channel(k=1)

    assert channel.publish(body(value, value, 5)) == []
    assert channel.publish(body(value, value)) == []
    assert channel.publish(body(5)) == [2]


def test_values_of_several_types_in_one_batch_are_distinct() -> None:
    channel = Channel(k=1)
    mixed = body(1, "1", MISSING, 2, "1", None, 1, True)

    assert len(mixed.column("properties").type) > 1
    assert channel.publish(mixed) == [0, 1]
    assert channel.publish(mixed) == [3, 4, 6, 7, 8, 9]


def test_a_value_in_the_overflow_counts_as_a_key_value() -> None:
    wide = body_of_columns([b""] * 2, properties=[{f"p{i}": i for i in range(300)}] * 2)
    channel = Channel(p299=1)

    assert "more" in wide.schema.names
    assert channel.publish(wide) == [0]
    assert channel.publish(body(299.0, name="p299")) == [1]


def test_a_time_is_one_value_in_a_column_and_in_the_overflow() -> None:
    time = datetime(2026, 1, 2, hour=3, minute=4, second=5, microsecond=678, tzinfo=UTC)
    row = {f"p{i}": i for i in range(300)} | {"k": time}
    channel = Channel(k=1)
    channel.publish(body_of_columns([b""], properties=[row]))

    assert channel.publish(body(time)) == [0]


def test_properties_that_are_null_as_a_whole_have_no_value() -> None:
    struct = pa.array([{"k": 1}, None, {"k": 1}, None], pa.struct([("k", pa.int64())]))
    batch = pa.RecordBatch.from_arrays([struct], names=["properties"])

    assert Channel(k=1).publish(batch) == [0]
    assert Channel(k=1).publish(batch.slice(1)) == []


def test_a_removed_event_is_not_replaced_again() -> None:
    channel = Channel(k=1)
    channel.publish(body("a", "b"))
    channel.live.remove(Span(0, 1))

    assert channel.publish(body("a", "b")) == [1]


def test_a_removed_event_makes_room_for_another() -> None:
    channel = Channel(k=3)
    channel.publish(body("a", "a", "a"))
    channel.live.remove(Span(1, 2))

    assert channel.publish(body("a")) == []
    assert channel.publish(body("a")) == [0]


def test_a_look_changes_nothing() -> None:
    channel = Channel(k=2)
    channel.publish(body("a", "a"))
    refused = body("a", "a", "a")

    assert list(channel.index.superseded([refused], 2, channel.live)) == [0, 1, 2]
    assert channel.publish(body("a")) == [0]


def test_an_index_rebuilt_from_stored_events_equals_the_first_one() -> None:
    channel = Channel(k=2)
    schema = ChannelSchema.empty()
    kept = []
    for batch in (body("a", 1, "b"), body(1.0, None, "a"), body("a", 1, MISSING)):
        schema = schema.grown(batch.schema)
        kept.append(stamp(batch, Span(channel.end, channel.end + 3), 0))
        channel.publish(batch)
    again = KeyIndex({"k": 2})
    for batch in kept:
        rows = [
            i for i, event_id in enumerate(batch.column(0).to_pylist()) if event_id in channel.live
        ]
        live = schema.conform(batch).take(pa.array(rows))
        again.append([live], live.column(0).to_numpy())
    following = body("a", 1, "b", "b")

    assert again.superseded([following], channel.end, channel.live) == channel.index.superseded(
        [following], channel.end, channel.live
    )


def test_values_without_live_events_are_dropped_when_they_have_become_many() -> None:
    for depth in (1, 2):
        channel = Channel(k=depth)
        channel.publish(body("keep"))
        for first in range(0, 4 * PRUNE_MIN, 512):
            channel.publish(body(*range(first, first + 512)))
            channel.live.remove(Span(1, channel.end))

        assert len(channel.index) <= 2 * PRUNE_MIN + 512
        channel.index.prune(channel.live)
        assert len(channel.index) == 1
        assert channel.publish(body(*["keep"] * depth)) == [0]


VALUES = st.sampled_from(
    [1, 1.0, True, 2, "1", "a", b"a", None, MISSING, float("nan"), [1], 0.0, -0.0, 2**53 + 1]
)
ROWS = st.fixed_dictionaries({"k": VALUES, "j": VALUES})
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.lists(st.lists(ROWS, min_size=1, max_size=6), min_size=1, max_size=3),
        ),
        st.tuples(
            st.just("refused"),
            st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=1),
        ),
        st.tuples(st.just("purge"), st.tuples(st.integers(0, 60), st.integers(1, 5))),
        st.tuples(
            st.just("refused and dropped"),
            st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=2),
        ),
        st.tuples(st.just("reclaim"), st.none()),
        st.tuples(st.just("prune"), st.none()),
        st.tuples(st.just("rebuild"), st.none()),
    ),
    max_size=12,
)


def value_of(row: dict[str, Any], name: str) -> Any:
    """Return the family and the value of a key value; None for a value that does not count."""
    value = row[name]
    if value is MISSING or value is None or isinstance(value, list) or value != value:
        return None
    family = "number" if type(value) in (int, float) else type(value).__name__
    return family, value


class Model:
    """A simple model of the rule, made of sets and loops."""

    def __init__(self, keys: dict[str, int]) -> None:
        self.keys = keys
        self.rows: dict[int, dict[str, Any]] = {}

    def replaced(self, ids: dict[int, dict[str, Any]]) -> list[int]:
        events = self.rows | ids
        removed: set[int] = set()
        for name, depth in self.keys.items():
            touched = {value_of(row, name) for row in ids.values()} - {None}
            for value in touched:
                same = [i for i in sorted(events) if value_of(events[i], name) == value]
                removed.update(same[:-depth])
        return sorted(removed)


def bodies_of(batches: list[list[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [
        body_of_columns(
            [b""] * len(rows),
            properties=[{k: v for k, v in row.items() if v is not MISSING} for row in rows],
        )
        for rows in batches
    ]


def refuse(channel: Channel, bodies: list[pa.RecordBatch], *, drops: bool) -> None:
    """Look up the events of a publish that is refused, and drop their values if ``drops``."""
    mark, size = channel.index.mark(), channel.index.nbytes
    one = bodies[0].num_rows == 1
    if not one or not channel.index.superseded_by_one(reader_of(bodies[0]), channel.live):
        channel.index.superseded(bodies, channel.end, channel.live)
    if drops and channel.index.nbytes > size:  # otherwise the lookup may have pruned values
        channel.index.drop_since(mark)
        assert channel.index.nbytes == size


def reclaim(channel: Channel) -> None:
    channel.index.reclaim(channel.live)
    if not channel.live:
        channel.index.clear()
        assert channel.index.nbytes == len(channel.index) == 0


@pytest.mark.slow
@pytest.mark.spec("K1")
@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(
        [{"k": 1}, {"k": 2}, {"k": 3}, {"k": 1, "j": 1}, {"k": 1, "j": 3}, {"k": 2, "j": 2}]
    ),
    STEPS,
)
def test_the_index_agrees_with_the_rule(keys: dict[str, int], steps: list[tuple[str, Any]]) -> None:
    model, channel = Model(keys), Channel(**keys)
    for kind, what in steps:
        if kind == "publish":
            ids = dict(enumerate((row for rows in what for row in rows), start=channel.end))
            wanted = model.replaced(ids)

            bodies = bodies_of(what)
            if len(ids) == 1:
                assert channel.publish_one(bodies[0]) == wanted
            else:
                assert channel.publish(*bodies) == wanted
            model.rows = {i: row for i, row in (model.rows | ids).items() if i not in wanted}
        elif kind in ("refused", "refused and dropped"):
            refuse(channel, bodies_of(what), drops=kind == "refused and dropped")
        elif kind == "reclaim":
            reclaim(channel)
        elif kind == "purge":
            removed_span = Span(what[0], sum(what))
            channel.live.remove(removed_span)
            model.rows = {
                i: row
                for i, row in model.rows.items()
                if not removed_span.first <= i < removed_span.end
            }
        elif kind == "prune":
            channel.index.prune(channel.live)
        else:
            channel.index = KeyIndex(keys)
            rows = [model.rows[i] for i in sorted(model.rows)]
            channel.index.append(bodies_of([rows]) if rows else [], np.array(sorted(model.rows)))
        assert list(channel.live) == sorted(model.rows)


def test_the_newest_event_of_a_value_can_be_looked_up() -> None:
    channel = Channel(k=1)
    channel.publish(body("a", "b"), body("a"))
    channel.live.remove_all(IdSet((Span(1, 2),)))  # as a purge does

    newest = [channel.index.newest_of(value, channel.live) for value in ("a", "b", "c", None, [1])]
    assert newest == [2, None, None, None, None]


# --- selecting by the value of a key -----------------------------------------------------

INDEXED = (
    "k = 'a'",
    "k IN ('a', 'c')",
    "k = 'b' AND NOT k = 'a'",
    "k = 'a' OR k = 'b'",
    "k IN ('a', 'b', 'c') AND k = 'c'",
    "k = 'nothing'",
)
"""Selectors that require a text for the key."""
UNINDEXED = (
    "k = 'a' OR other = 'b'",
    "k <> 'a'",
    "k = 1",
    "k",
    "k LIKE 'a%'",
    "k = '2026-01-01T00:00:00Z'",
    "k = other",
)
"""Selectors that other values may match."""


@pytest.mark.spec("F5", "K1")
@settings(max_examples=examples(200))
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [MISSING, None, "a", "b", "c", 1, 1.0, True, "2026-01-01T00:00:00Z", b"a", ["a"]]
            ),
            min_size=1,
            max_size=4,
        ),
        max_size=8,
    ),
    st.integers(1, 3),
    st.sampled_from([*INDEXED, *UNINDEXED]),
)
def test_a_selector_finds_all_its_events_by_the_value_of_a_key(
    publishes: list[list[Any]], depth: int, text: str
) -> None:
    channel = Channel(k=depth)
    matching: list[int] = []
    selector = Selector(text)
    for values in publishes:
        batch = body(*values)
        first = channel.end
        channel.publish(batch)
        mask = selector.mask(stamp(batch, Span(first, channel.end), 0))
        matching += (np.flatnonzero(mask) + first).tolist()

    ids = channel.index.ids_selected(selector.expression, channel.live)

    expected = [event_id for event_id in matching if event_id in channel.live]
    assert (ids is None) == (text in UNINDEXED)
    if ids is not None:
        assert set(expected) <= set(ids)
        if " AND " not in text:
            assert list(ids) == expected


def test_a_key_with_the_name_of_a_header_finds_nothing() -> None:
    channel = Channel(tag=1)
    channel.publish(body("a", name="tag"))

    assert channel.index.ids_selected(Selector("tag = 'a'").expression, channel.live) is None
