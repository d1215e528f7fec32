"""Events of others that become columns: Arrow streams with dictionaries and views, deeply nested
properties, and numbers at the ends of their types.

Accepted events must also be readable: as events, as a flat table, and by selectors.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.documents import event_of
from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.tables import bodies_of_table
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, table_from_stream
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX
from tests.fuzz import columns_extremes

NUMBERS: Final = (
    0,
    -1,
    1 << 53,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    0.0,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    float("inf"),
    float("nan"),
)
ROWS_MAX: Final = 10_000
_SELECTORS: Final = ("n > 9007199254740992", "deep[] = 1 OR deep.k[].k = 'x'", "p IS NULL")


def check_readable(body: pa.RecordBatch) -> None:
    """Read an accepted body in every way."""
    batch = stamp(body, Span(0, body.num_rows), 0)
    events = EventBatch(batch)
    for event in events:
        _ = event.properties
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for numbers without an exact double
        assert events.to_table().num_rows == body.num_rows
    for text in _SELECTORS:
        assert len(Selector(text).mask(batch, now_us=10)) == body.num_rows


def streams(data: bytes) -> None:
    """Read an Arrow stream, as HTTP accepts it."""
    with contextlib.suppress(InvalidEvent):
        for body in bodies_of_table(table_from_stream(data, rows_max=ROWS_MAX)):
            check_readable(body)


@lru_cache
def some_streams() -> Sequence[bytes]:
    """Plain streams, ones with small dictionaries, and ones whose values are much larger than the
    stream: one value of 16 MiB, or one that many rows share."""
    texts = pa.array(["new", "sent", None] * 20)
    nested = pa.StructArray.from_arrays([texts.dictionary_encode()], names=["s"])
    large = pa.array([bytes(16 << 20)], pa.binary()).dictionary_encode()
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int8()), ["x" * 20_000])
    return [
        _stream(pa.record_batch({"n": NUMBERS[:7], "p": (*NUMBERS[7:], 0.5), "data": [b"x"] * 7})),
        _stream(pa.record_batch({"state": texts.dictionary_encode(), "in": nested}), "zstd"),
        _stream(pa.record_batch({"state": texts.cast(pa.string_view()), "tag": texts})),
        _stream(pa.record_batch({"data": large}), "zstd"),
        _stream(pa.record_batch({"data": large, "n": large}), "lz4"),
        _stream(pa.record_batch({"p": shared})),
        *(columns_extremes.stream(batch) for _, batch in columns_extremes.batches()),
    ]


def _stream(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def cells(data: bytes) -> None:
    """Read the column of properties that fit no other column, as a client may send it."""
    body = body_of([Event(b"")]).append_column("more", pa.array([data], pa.binary()))
    with contextlib.suppress(InvalidEvent):
        check_body(body)
        check_readable(body)


def some_cells() -> Sequence[bytes]:
    """Cells with a property of some levels of lists or maps, up to the bound and beyond."""
    cells_ = [overflow.encoded({"n": NUMBERS[4], "p": [1, "a", *NUMBERS[7:]]})]
    for levels in (2, NESTING_MAX, NESTING_MAX + 1, 300):
        node: Any = ["l", 1]
        for level in range(levels):
            node = ["a", [node]] if level % 2 else ["m", {"k": node}]
        cells_.append(overflow.of_nodes({"deep": node}))
    return [*cells_, b"\x81\xa4deep" + b"\x92\xa1a\x91" * 100_000]


def documents(data: bytes) -> None:
    """Read a line of JSON that is an event, and the body that it becomes."""
    with contextlib.suppress(InvalidEvent, InvalidArgument, TypeError):
        body = body_of([event_of(data)])
        check_body(body)
        check_readable(body)


def some_documents() -> Sequence[bytes]:
    nested = (b"[" * levels + b"]" * levels for levels in (2, NESTING_MAX - 2, 150, 100_000))
    numbers = (b"%d" % value for value in (*NUMBERS[:7], 1 << 64, 10**400))
    return [
        *(b'{"deep": %s, "data": "x"}' % value for value in nested),
        *(b'{"properties": {"n": %s, "p": [%s, 0.5]}}' % (value, value) for value in numbers),
        b'{"properties": {"n": null, "p": "AP8="}, "types": {"/n": "nan", "/p": "bytes"}}',
    ]


def numbers(data: bytes) -> None:
    """Read a record batch with numbers of two types in one property."""
    schema = numbered().schema
    with contextlib.suppress(InvalidEvent):
        body = batch_from(data, schema)
        check_body(body)
        check_readable(body)


@lru_cache
def numbered() -> pa.RecordBatch:
    lists: list[dict[str, Any]] = [
        {"xs": [1, 2]},
        {"xs": [0.5]},
        {"d": {"k": 1}},
        {"d": {"k": 1.5}},
    ]
    return body_of([Event(b"", properties=row) for row in [{"n": n} for n in NUMBERS] + lists])


def some_numbers() -> Sequence[bytes]:
    return [bytes(batch_bytes(numbered()))]
