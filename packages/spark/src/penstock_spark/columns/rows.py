"""Converts rows of a Spark table to events, routes them to channels, and reports invalid rows.

The conversion works on whole columns. If a batch is refused, a binary search finds the first
invalid row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, NullType, StructField, StructType

from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.events.delivery_time import split_by_waiting
from penstock_core.columns.events.digest import digest
from penstock_core.columns.files.tables import bodies_of_table, with_whole_nulls
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import FIELDS, SETTABLE_FIELDS, STAMPED
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent, PenstockError, Refused
from penstock_spark.columns.projection import arrow_schema
from penstock_spark.options import SinkOptions, nearest

SHOWN_COLUMNS_MAX: Final = 12
"""Largest number of columns of an invalid row in an error text."""
SHOWN_CHARACTERS_MAX: Final = 40
"""Largest number of characters of a value in an error text."""

_ALLOWED_VALUES: Final = {
    "ttl": f"give milliseconds, 0 to {TTL_MS_MAX}; null or 0 for no own TTL",
    "priority": "give 0 to 9; null for the channel's priority",
}
_EVENT_COLUMNS: Final = frozenset((*STAMPED, *SETTABLE_FIELDS, "properties", "headers"))
"""Columns that are not properties."""
_TYPE_NAME: Final = re.compile(r"[a-z]+(?![a-z]*:)")
"""Matches the types, but not the names of fields, in Spark's text for a type."""
_PAYLOADS: Final = (pa.binary(), pa.string())
_KAFKA_COLUMNS: Final = frozenset(("key", "topic", "partition", "headers", "offset", "timestamp"))
"""Columns that rows for Spark's Kafka sink have, and some that rows of its source have."""
_EVENT: Final = re.compile(r"^event \d+(?: of the batch)?(?:: | )")

T = TypeVar("T", bound=DataType)
Numbers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class ChannelRows(NamedTuple):
    """Rows for one channel, with their numbers in the partition."""

    channel: str
    table: pa.Table
    numbers: Numbers
    """The number of each row in its partition, from 0."""
    partition: int

    def row_error(self, row: int, reason: str, error: type[PenstockError]) -> PenstockError:
        """Return an error of class ``error`` that names a row, shows it and states the reason."""
        return error(
            f"row {self.numbers[row]} of partition {self.partition} {reason}; the row is "
            f"{shown(self.table.slice(row, 1))}"
        )

    def part(self, first: int, count: int) -> ChannelRows:
        return self._replace(
            table=self.table.slice(first, count), numbers=self.numbers[first : first + count]
        )


def check_writable(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Raise ``InvalidArgument`` or ``InvalidEvent`` if no channel accepts rows with this schema.

    This is checked before the tasks start, so that a mistake costs no work.
    """
    if overwrite:
        raise InvalidArgument(
            "a channel only ever grows: write with mode append, a stream with output mode "
            "append; to start over, purge the channel first"
        )
    realm_columns = [name for name in STAMPED if name in schema.names]
    if realm_columns:
        names = ", ".join(repr(name) for name in realm_columns)
        raise InvalidEvent(
            f"the realm sets {' and '.join(realm_columns)}; leave them out with .drop({names}), or "
            "rename them to keep them as properties. For INSERT INTO, give the view the columns to "
            "write: CREATE TEMPORARY VIEW name (price DOUBLE, sku STRING) USING penstock OPTIONS "
            "(channel 'orders')"
        )
    _check_case(schema, options)
    schema = _with_nullable_nulls(schema)
    _check_types(schema)
    kinds = arrow_schema(schema)
    _check_column(kinds, "channelColumn", options.channel_column, kind=pa.string(), spoken="STRING")
    _check_column(kinds, "deltaColumn", options.delta_column, kind=pa.bool_(), spoken="BOOLEAN")
    routing_columns = (options.channel_column, options.delta_column)
    payload = [field for field in kinds if field.name not in routing_columns]
    if not payload:
        raise InvalidEvent("the rows have no column that an event could be made of")
    # Converting one row of nulls finds all columns that events cannot have, before any task runs.
    nulls = [pa.nulls(1, field.type) for field in payload]
    _check_value(kinds, options)
    batch = pa.RecordBatch.from_arrays(nulls, [field.name for field in payload])
    bodies_of_table(as_table(batch, options))


def _with_nullable_nulls(kind: T) -> T:
    """Return the type with all void fields and elements nullable. Spark's ``array()`` is a list of
    void elements that must not be null, which Arrow refuses."""
    if isinstance(kind, StructType):
        fields = [
            StructField(
                field.name,
                _with_nullable_nulls(field.dataType),
                field.nullable or isinstance(field.dataType, NullType),
            )
            for field in kind.fields
        ]
        return StructType(fields)  # type: ignore[return-value]  # mypy does not narrow T
    if isinstance(kind, ArrayType):
        element = _with_nullable_nulls(kind.elementType)
        may_be_null = kind.containsNull or isinstance(element, NullType)
        return ArrayType(element, may_be_null)  # type: ignore[return-value]
    return kind


def _check_types(schema: StructType) -> None:
    """Raise ``InvalidEvent`` if a column has a type that events do not support."""
    for field in schema.fields:
        text = field.dataType.simpleString()
        is_known = "variant" not in _TYPE_NAME.findall(text)
        if is_known:
            try:
                arrow_schema(StructType([field]))
            except (PySparkException, ValueError):
                is_known = False
        if not is_known:
            raise InvalidEvent(
                f"column {field.name!r} is {text}, a type that events do not have; cast it, for "
                f"example to STRING"
            )


def _check_case(schema: StructType, options: SinkOptions) -> None:
    """Raise ``InvalidEvent`` for a column such as ``Tag``, which Spark's SQL does not distinguish
    from the event column ``tag``."""
    routing_columns = (options.channel_column, options.delta_column)
    for name in schema.names:
        lower = name.lower()
        if name != lower and lower in _EVENT_COLUMNS and name not in routing_columns:
            raise InvalidEvent(
                f"the column {name} differs from the column {lower} of events in case only, which "
                f"Spark does not tell apart: name it {lower}, or put it into a struct column "
                f"properties to publish a property {name}"
            )


def _check_column(
    schema: pa.Schema, option: str, name: str, kind: pa.DataType, spoken: str
) -> None:
    if not name:
        return
    if name not in schema.names:
        hint = nearest(name, tuple(schema.names))
        raise InvalidArgument(f"{option} is {name}, but the rows have no such column: {hint}")
    if schema.field(name).type != kind:
        raise InvalidArgument(
            f"{option} is {name}, a column of type {schema.field(name).type}; it must be {spoken}"
        )


def _check_value(schema: pa.Schema, options: SinkOptions) -> None:
    """Raise ``InvalidArgument`` if the option ``value`` does not fit the columns, or is missing for
    rows that look like rows for Kafka, where the column ``value`` is the payload."""
    if options.value == "data":
        if "value" not in schema.names:
            raise InvalidArgument("value=data, but the rows have no column value")
        if "data" in schema.names:
            raise InvalidArgument(
                "value=data, but the rows also have a column data; an event has one payload: "
                "leave out one of them"
            )
        if schema.field("value").type not in _PAYLOADS:
            raise InvalidArgument(
                f"value=data, and the column value is {schema.field('value').type}; a payload "
                f"must be BINARY or STRING"
            )
        return
    other_columns = set(schema.names) - {"value", options.channel_column}
    if options.value or "value" not in schema.names or not other_columns <= _KAFKA_COLUMNS:
        return
    if schema.field("value").type in _PAYLOADS:
        raise InvalidArgument(
            "the rows look like rows for Kafka: they have a column value and otherwise only "
            "Kafka's columns. Here the "
            'payload is the column data, and any other column a property: set .option("value", '
            '"data") to publish value as the payload, or "property" to keep it as a property'
        )


def as_table(batch: pa.RecordBatch, options: SinkOptions) -> pa.Table:
    """Return a batch of Spark as a table that the client accepts: the payload is in the column
    ``data``, as bytes. Raises ``InvalidEvent`` if two columns have one name."""
    arrays = [with_whole_nulls(array) for array in batch.columns]
    columns = dict(zip(batch.schema.names, arrays, strict=True))
    if options.value == "data" and len(columns) == batch.num_columns:
        columns["data"] = columns.pop("value")
        batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    if len(columns) < batch.num_columns:
        raise InvalidEvent(f"two columns have one name: {', '.join(batch.schema.names)}")
    data = columns.get("data")
    if data is not None and pa.types.is_string(data.type):
        columns["data"] = data.cast(pa.binary())
    return pa.table(columns)


def route_rows(
    table: pa.Table, first_row: int, partition: int, options: SinkOptions
) -> Iterator[ChannelRows]:
    """Divide rows among their target channels; the order of rows in a channel stays.

    ``first_row`` is the number of the first row in the partition. Raises ``InvalidEvent`` if a row
    names no channel and the write has no default.
    """
    numbers = np.arange(first_row, first_row + table.num_rows, dtype=np.int64)
    default = options.where.channel
    if not options.channel_column:
        yield ChannelRows(default, table, numbers, partition=partition)
        return
    names = table.column(options.channel_column)
    if names.null_count:
        if not default:
            row = int(np.argmax(names.is_null().to_numpy()))
            all_rows = ChannelRows("", table, numbers, partition=partition)
            reason = (
                f"names no channel: {options.channel_column} is null; give it a value, or give "
                f"the write the option channel"
            )
            raise all_rows.row_error(row, reason, InvalidEvent)
        names = names.fill_null(default)
    table = table.drop_columns([options.channel_column])
    encoded = pc.dictionary_encode(names.combine_chunks())
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    channels = encoded.dictionary.to_pylist()
    if len(channels) == 1:
        yield ChannelRows(channels[0], table, numbers, partition=partition)
        return
    # A stable sort keeps the order of rows within each channel.
    order = np.argsort(codes, kind="stable")
    table, numbers = table.take(pa.array(order)), numbers[order]
    first_rows = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=len(channels)))))
    all_rows = ChannelRows("", table, numbers, partition=partition)
    for channel, first, end in zip(channels, first_rows[:-1], first_rows[1:], strict=True):
        yield all_rows.part(int(first), int(end - first))._replace(channel=channel)


def events_of(
    rows: ChannelRows, options: SinkOptions, event_bytes_max: int
) -> list[pa.RecordBatch]:
    """Return the rows as bodies to publish. Rows with a delivery time get separate bodies.

    Raises ``InvalidEvent`` or ``EventTooLarge`` if a row cannot be an event; the text shows the
    first such row.
    """

    def make_bodies(part: ChannelRows) -> list[pa.RecordBatch]:
        bodies = [
            body for table in split_by_waiting(part.table) for body in _bodies(table, options)
        ]
        for body in bodies:
            # `digest` checks each event; a body below the limit cannot contain an event above it.
            if body.nbytes > event_bytes_max:
                digest(body, event_bytes_max)
        return bodies

    try:
        return make_bodies(rows)
    except Refused as error:
        refused_row = _first_refused(rows, make_bodies)
        if refused_row is None:
            raise
        row, reason = refused_row
        raise rows.row_error(row, f"cannot be an event: {_reason(reason)}", type(error)) from error


def deltas_in(table: pa.Table, options: SinkOptions) -> Bools | None:
    """Return a mask of the rows that are deltas; None if no row is a delta."""
    if options.delta:
        return np.ones(table.num_rows, dtype=np.bool_)
    if not options.delta_column:
        return None
    flags = pc.fill_null(table.column(options.delta_column), fill_value=False)
    mask = np.asarray(flags.to_numpy(), dtype=np.bool_)
    return mask if mask.any() else None


def _bodies(table: pa.Table, options: SinkOptions) -> list[pa.RecordBatch]:
    """Return a table as bodies, with the marks for deltas and absent properties."""
    delta_mask = deltas_in(table, options)
    if options.delta_column:
        table = table.drop_columns([options.delta_column])
    bodies = bodies_of_table(table)
    if delta_mask is None and not options.nulls_are_absent:
        return bodies
    marked_bodies, first_row = [], 0
    for body in bodies:
        count = body.num_rows
        is_delta = (
            np.zeros(count, np.bool_)
            if delta_mask is None
            else delta_mask[first_row : first_row + count]
        )
        # Spark has only one kind of null. In a delta, it means that the property is unchanged
        # (SEM K4).
        sparse = np.ones(count, np.bool_) if options.nulls_are_absent else is_delta
        body = body.append_column(FIELDS["sparse"], pa.array(sparse))
        if is_delta.any():
            body = body.append_column(FIELDS["delta"], pa.array(is_delta))
        marked_bodies.append(body)
        first_row += count
    return marked_bodies


def _first_refused(
    rows: ChannelRows, make_bodies: Callable[[ChannelRows], list[pa.RecordBatch]]
) -> tuple[int, PenstockError] | None:
    """Return the first row that is refused by itself, and its error; None if the rows are refused
    only together."""
    # Invariant: the first refused row is in the `count` rows from `first`, if one is refused alone.
    first, count = 0, rows.table.num_rows
    while count > 1:
        half = count // 2
        if _refusal(rows.part(first, half), make_bodies) is None:
            first, count = first + half, count - half
        else:
            count = half
    refusal = _refusal(rows.part(first, 1), make_bodies)
    return None if refusal is None else (first, refusal)


def _refusal(
    rows: ChannelRows, make_bodies: Callable[[ChannelRows], list[pa.RecordBatch]]
) -> PenstockError | None:
    try:
        make_bodies(rows)
    except Refused as error:
        return error
    return None


def _reason(error: PenstockError) -> str:
    """Return the text of an error without the number of the event in its batch, and with the
    allowed values of the column."""
    text = _EVENT.sub("", str(error))
    for column, allowed in _ALLOWED_VALUES.items():
        if re.match(rf"(column '{column}'|{column}) ", text):
            return f"{text}; {allowed}"
    return text


def shown(row: pa.Table) -> str:
    """Return the values of a one-row table for error texts, each shortened."""
    texts = []
    for name in row.column_names[:SHOWN_COLUMNS_MAX]:
        text = _text(row.column(name)[0])
        if len(text) > SHOWN_CHARACTERS_MAX:
            text = f"{text[: SHOWN_CHARACTERS_MAX - 1]}…"
        texts.append(f"{name}={text}")
    hidden_count = row.num_columns - len(texts)
    return ", ".join(texts) + (f" and {hidden_count} more columns" if hidden_count else "")


def _text(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):  # a time outside Python's datetime
        return f"{value.value} µs" if pa.types.is_timestamp(value.type) else f"a {value.type}"
