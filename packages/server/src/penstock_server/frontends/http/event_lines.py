"""NDJSON of events whose columns are plain, made column by column.

A line has the bytes of the document of its event (:mod:`event_documents`), but no event or document
is made: Arrow joins the texts of the columns, without the lock of the interpreter. Batches with
nested values, headers, origins and other rare columns have no such lines.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import EventBatch, ids_of, within
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import LOGICAL_NAME, PRIORITY_DEFAULT
from penstock_server.frontends.http.event_documents import ChosenColumns

_RARE: Final = ("headers", "origin", "more", "nulls", "delta")
"""Columns that must be empty: :func:`lines_of` returns None for a batch with a value in one of
them."""
_SPACE: Final = ord(" ")
"""Characters below this one are escaped in JSON."""
_encode: Final = msgspec.json.Encoder().encode


def lines_of(batch: EventBatch, chosen: ChosenColumns | None) -> memoryview | None:
    """Return a line for each event, with the ``chosen`` columns or all of them; None if a column is
    not plain or the batch has no events."""
    stored = batch.to_arrow()
    if batch.redeliveries or any(_has_values(stored, name) for name in _RARE):
        return None
    properties = _properties(stored, chosen) if stored.num_rows else None
    if properties is None:
        return None
    data = _column(stored, "data", pa.binary())
    pieces: list[Any] = [
        '{"event_id":',
        stored.column("event_id").cast(pa.string()),
        ',"published":"',
        _times(stored.column("published")),
        '","size":',
        pc.binary_length(data).cast(pa.string()),
        ',"properties":{',
        properties,
        "}",
    ]
    optional: dict[str, Callable[[], list[Any]]] = {
        "tag": lambda: _member("tag", _quoted(_column(stored, "tag", pa.string()))),
        "data": lambda: _data(data, chosen),
        "headers": lambda: [_headers(batch)],
        "ttl": lambda: _unless_default(stored, "ttl", pa.int64(), default=0),
        "priority": lambda: _unless_default(
            stored, "priority", pa.int8(), default=PRIORITY_DEFAULT
        ),
        "persistent": lambda: _unless_default(stored, "persistent", pa.bool_(), default=True),
    }
    for name, member in optional.items():
        if chosen is None or name in chosen.fields or (name == "data" and _has_data(chosen)):
            pieces += member()
    return _bytes(_joined([*pieces, "}\n"], stored.num_rows))


def _has_data(chosen: ChosenColumns) -> bool:
    return bool(chosen.fields & {"data", "data_base64"})


def _has_values(batch: pa.RecordBatch, name: str) -> bool:
    index = batch.schema.get_field_index(name)
    return index >= 0 and bool(batch.column(index).null_count < batch.num_rows)


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column; without it, its values for events that do not set it."""
    index = batch.schema.get_field_index(name)
    column = pa.nulls(batch.num_rows, kind) if index < 0 else batch.column(index)
    return pc.fill_null(column, b"") if name == "data" else column


def _joined(pieces: Sequence[Any], count: int) -> pa.Array:
    """Return a text for each of ``count`` rows: the row's values in ``pieces``, joined. A text in
    ``pieces`` is the same for all rows; nulls are left out."""
    constants = [pa.scalar(text) if isinstance(text, str) else text for text in pieces]
    if not any(isinstance(text, pa.Array) for text in pieces):
        constants.append(pa.repeat("", count))
    return pc.binary_join_element_wise(*constants, "", null_handling="skip")


def _member(name: str, values: pa.Array) -> list[Any]:
    """Return the pieces of an optional member of the documents; the member is left out where the
    value is null."""
    prefix = pa.scalar(f',"{name}":')
    return [pc.if_else(pc.is_valid(values), prefix, pa.scalar(None, pa.string())), values]


def _unless_default(
    batch: pa.RecordBatch, name: str, kind: pa.DataType, default: object
) -> list[Any]:
    """Return the pieces of a member that a document has only if the value is not the default."""
    if not _has_values(batch, name):
        return []
    column = _column(batch, name, kind)
    is_other = pc.not_equal(column, pa.scalar(default, column.type))
    texts = column.cast(pa.string())
    return _member(name, pc.if_else(is_other, texts, pa.scalar(None, pa.string())))


def _times(column: pa.Array) -> pa.Array:
    """Return times as RFC 3339, without a fraction of zero."""
    texts = column.cast(pa.timestamp("us")).cast(pa.string())
    with_t = pc.replace_substring(texts, " ", "T")
    return pc.binary_join_element_wise(pc.replace_substring(with_t, ".000000", ""), "Z", "")


def _quoted(texts: pa.Array) -> pa.Array:
    """Return texts as JSON strings; null for null."""
    characters = _characters(texts)
    if (characters < _SPACE).any():
        encoded = [None if text is None else _encode(text).decode() for text in texts.to_pylist()]
        return pa.array(encoded, pa.string())
    for special in ("\\", '"'):  # the backslash first, because it escapes the other one
        if (characters == ord(special)).any():
            texts = pc.replace_substring(texts, special, f"\\{special}")
    return pc.binary_join_element_wise('"', texts, '"', "")


def _characters(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes of all texts, without a copy."""
    buffer = texts.buffers()[2]
    if not len(texts) or buffer is None:
        return np.empty(0, dtype=np.uint8)
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
    return np.frombuffer(buffer, np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))


def _data(data: pa.Array, chosen: ChosenColumns | None) -> list[Any]:
    """Return the pieces of each line that contain the data, as text or, if it is not UTF-8, as
    base64; an empty list if the data is not one of the chosen columns."""
    names = [name for name in ("data", "data_base64") if chosen is None or name in chosen.fields]
    try:
        texts = data.cast(pa.string())
    except pa.ArrowInvalid:
        return [pa.array([_data_member(value, names) for value in data.to_pylist()], pa.string())]
    return _member("data", _quoted(texts)) if "data" in names else []


def _data_member(data: bytes, names: Sequence[str]) -> str | None:
    try:
        name, text = "data", data.decode()
    except UnicodeDecodeError:
        name, text = "data_base64", base64.b64encode(data).decode()
    return f',"{name}":{_encode(text).decode()}' if name in names else None


def _headers(batch: EventBatch) -> pa.Array:
    """Return the headers that the realm adds: the publisher of each event."""
    stored = batch.to_arrow()
    texts: list[str | None] = [None]
    codes = np.zeros(stored.num_rows, dtype=np.int64)
    # Backwards, so that the first publisher of an event counts.
    for publisher, spans in reversed(batch.publishers):
        (event,) = EventBatch(stored.slice(0, 1), publishers=((publisher, ()),))
        codes[within(ids_of(stored), spans) if spans else slice(None)] = len(texts)
        texts.append(f',"headers":{_encode(event.headers).decode()}' if event.headers else None)
    return pa.array(texts, pa.string()).take(pa.array(codes))


def _properties(batch: pa.RecordBatch, chosen: ChosenColumns | None) -> pa.Array | None:
    """Return, for each event, its properties as members of a JSON object; None if a property is not
    plain."""
    index = batch.schema.get_field_index("properties")
    if index < 0:
        return pa.repeat("", batch.num_rows)
    struct = batch.column(index)
    fields = {field.name: position for position, field in enumerate(struct.type)}
    if any(LOGICAL_NAME in (field.metadata or {}) for field in struct.type):
        return None
    names = list(fields)
    if chosen is not None and "properties" not in chosen.fields:
        names = [name for name in chosen.properties if name in fields]
    children = struct.flatten()  # with the nulls of the struct
    texts = [_values(children[fields[name]]) for name in names]
    if any(text is None for text in texts):
        return None
    is_absent = _absent(batch, struct)
    nothing = pa.scalar(None, pa.string())
    members: list[Any] = [""]
    for name, text in zip(names, texts, strict=True):
        member = pc.binary_join_element_wise(
            f",{_encode(name).decode()}:", pc.fill_null(text, "null"), ""
        )
        members.append(pc.if_else(pc.and_(is_absent, pc.is_null(text)), nothing, member))
    # Cut off the comma before the first member.
    return pc.utf8_slice_codeunits(_joined(members, batch.num_rows), start=1)


def _absent(batch: pa.RecordBatch, struct: pa.StructArray) -> pa.Array:
    """Return, for each event, whether a null in a property means that the event lacks the
    property."""
    index = batch.schema.get_field_index("sparse")
    if index < 0:
        return pc.is_null(struct)
    return pc.or_(pc.fill_null(batch.column(index), fill_value=False), pc.is_null(struct))


def _values(column: pa.Array) -> pa.Array | None:
    """Return the values as JSON texts; None if the column is nested or has values that JSON
    lacks."""
    kind = column.type
    if pa.types.is_string(kind):
        return _quoted(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if not pa.types.is_float64(kind) or not pc.all(pc.is_finite(column), min_count=0).as_py():
        return None
    # Arrow writes floats in another form.
    values = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).tolist()
    texts = _encode(values)[1:-1].decode().split(",") if values else []
    return pc.if_else(
        pc.is_valid(column), pa.array(texts, pa.string()), pa.scalar(None, pa.string())
    )


def _bytes(texts: pa.Array) -> memoryview:
    """Return the bytes of all texts, one after the other."""
    return _characters(texts).data.cast("B")
