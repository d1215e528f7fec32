"""The schema of a channel. It only grows, and every batch can be converted to it."""

from __future__ import annotations

import base64
import zlib
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.columns.schema.layout import BODY, FIELDS, STAMPED_FIELDS
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.schema_fit import fitted, lacks, nulls_column, spilled, unplaced
from penstock_core.columns.schema.shapes import (
    NO_SLOTS,
    Slot,
    StructShape,
    Unsupported,
    arrow_type,
    grown,
    struct_shape,
)
from penstock_core.vocabulary.errors import InvalidEvent

CHANNEL_SCHEMA: Final = b"penstock.channel"
"""Metadata key in a file's schema: the channel's schema, compressed, if it differs from the
file's."""
SCHEMA_BYTES_MAX: Final = 16 << 20
"""Maximum number of bytes, after decompression, of a channel's schema in the metadata of a file."""


class Parts(NamedTuple):
    """The parts of the schema of a body or stored batch."""

    names: frozenset[str]
    """Names of the columns of a body that are present."""
    properties: StructShape
    """Shape of the column ``properties``, without slots if it is absent."""
    headers: StructShape
    """Shape of the column ``headers``, without slots if it is absent."""

    @classmethod
    def of(cls, schema: pa.Schema) -> Parts:
        """Return the parts of an Arrow schema. Raises ``InvalidEvent`` for column types no event
        can have."""
        return _parts.of(schema)

    @classmethod
    def _of(cls, schema: pa.Schema) -> Parts:
        names = frozenset(schema.names) & BODY.keys()
        structs = {}
        for name in ("properties", "headers"):
            kind = schema.field(name).type if name in names else pa.struct([])
            try:
                structs[name] = struct_shape(kind)
            except Unsupported as error:
                raise InvalidEvent(
                    f"{name}.{error.path} has the unsupported type {error.kind}"
                ) from None
        return cls(names, structs["properties"], structs["headers"])


_parts = SchemaMemo(Parts._of)


class _Plan(NamedTuple):
    """Plan for the conversion of batches from one schema to the channel's schema."""

    parts: Parts
    """The parts of the schema of the batches."""
    leaving: list[Slot]
    """Properties whose values move to ``more``, because no column of the channel can hold them."""
    makes_sparse: bool
    """Whether the channel has properties that the batches lack, so that all rows become sparse."""


class ChannelSchema:
    """The schema of a channel's stored events: grows with new properties, never shrinks."""

    __slots__ = ("_grown", "_parts", "_plans", "arrow")

    arrow: pa.Schema
    """The Arrow schema of stored batches, including ``event_id`` and ``published``."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.arrow = pa.schema([*STAMPED_FIELDS, *_fields(parts)])
        self._grown = SchemaMemo(self._grow)
        self._plans = SchemaMemo(self._plan)

    @staticmethod
    def empty() -> ChannelSchema:
        """Return the schema of a channel without events.

        All channels start from this one object, so channels with equal events share their grown
        schemas.
        """
        return _EMPTY

    @classmethod
    def from_bytes(cls, message: bytes) -> Self:
        """Decode a schema from :meth:`to_bytes`. Raises :class:`InvalidEvent` for other bytes."""
        return cls(Parts.of(schema_from(message)))

    @classmethod
    def of_file(cls, message: bytes) -> Self:
        """Return the schema that the channel had when a file was written, from the schema of the
        file.

        The file itself may have fewer columns (:mod:`penstock_core.columns.files.lean_columns`).
        Raises :class:`InvalidEvent`.
        """
        schema = schema_from(message)
        packed = (schema.metadata or {}).get(CHANNEL_SCHEMA)
        return cls.from_bytes(message if packed is None else _unpacked(packed))

    def note(self, columns: pa.Schema) -> dict[bytes, bytes] | None:
        """Return the metadata for a file with these ``columns``; None if they are the channel's
        schema."""
        if columns.equals(self.arrow, check_metadata=True):
            return None
        packed = base64.b64encode(zlib.compress(self.to_bytes()))
        return {CHANNEL_SCHEMA: packed}

    @property
    def names(self) -> frozenset[str]:
        """Names of the columns, without the columns that the realm adds."""
        return self._parts.names

    @property
    def properties(self) -> StructShape:
        return self._parts.properties

    @property
    def headers(self) -> StructShape:
        return self._parts.headers

    def to_bytes(self) -> bytes:
        """Return the schema as an Arrow IPC message."""
        return schema_bytes(self.arrow)

    def grown(self, body: pa.Schema) -> ChannelSchema:
        """Return the schema that also fits batches of ``body``; this object itself if nothing is
        new."""
        return self._grown.of(body)

    def _grow(self, body: pa.Schema) -> ChannelSchema:
        """Return the schema for the events of both schemas, with ``sparse``, ``nulls`` and ``more``
        if they need it."""
        own_parts, incoming = self._parts, _parts.of(body)
        properties = grown(own_parts.properties, incoming.properties.slots)
        names = own_parts.names | incoming.names
        if not properties.slots:
            # A struct without fields cannot be stored.
            names -= {"properties"}
        if (own_parts.properties.slots and lacks(own_parts.properties, properties)) or (
            incoming.properties.slots and lacks(incoming.properties, properties)
        ):
            # One side lacks keys of the other. These keys become nulls, which the two columns
            # distinguish from explicit nulls.
            names |= {"sparse", "nulls"}
        if unplaced(incoming.properties, properties):
            names |= {"more"}
        parts = Parts(names, properties, grown(own_parts.headers, incoming.headers.slots))
        return self if parts == own_parts else ChannelSchema(parts)

    def _plan(self, schema: pa.Schema) -> _Plan:
        parts = _parts.of(schema)
        own_properties = self._parts.properties
        lacks_properties = bool(parts.properties.slots) and lacks(parts.properties, own_properties)
        return _Plan(parts, unplaced(parts.properties, own_properties), lacks_properties)

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a stored batch to this schema without changing any event.

        Call :meth:`grown` with the batch's schema first. A batch that has this schema already is
        returned unchanged.
        """
        if batch.schema.equals(self.arrow, check_metadata=True):
            return batch
        plan = self._plans.of(batch.schema)
        columns = {name: batch.column(name) for name in batch.schema.names}
        if plan.makes_sparse:
            columns |= sparse_columns(batch, plan.parts.properties)
        if plan.leaving:
            columns["more"] = spilled(batch, plan.parts.properties, plan.leaving)
        for name, shape, target in (
            ("properties", plan.parts.properties, self._parts.properties),
            ("headers", plan.parts.headers, self._parts.headers),
        ):
            if name in columns and target.slots:
                columns[name] = fitted(columns[name], shape, target)
        count = batch.num_rows
        arrays = [
            columns[field.name] if field.name in columns else _absent(field, count)
            for field in self.arrow
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)

    def __repr__(self) -> str:
        properties = ", ".join(slot.name for slot in self._parts.properties.slots)
        return f"ChannelSchema({', '.join(self.arrow.names)}; properties: {properties or 'none'})"


def _unpacked(packed: bytes) -> bytes:
    """Return the decompressed schema of a channel. Raises :class:`InvalidEvent`."""
    try:
        unpack = zlib.decompressobj()
        # Limited, because a damaged or hostile file could unpack to any size.
        message = unpack.decompress(base64.b64decode(packed, validate=True), SCHEMA_BYTES_MAX)
    except (zlib.error, ValueError) as error:
        raise InvalidEvent(
            f"the description of the channel's columns in a file is damaged: {error}"
        ) from error
    if not unpack.eof:
        raise InvalidEvent(
            f"a file describes its channel's columns in more than {SCHEMA_BYTES_MAX} bytes"
        )
    return message


def _fields(parts: Parts) -> list[pa.Field]:
    """Return the Arrow fields of a body with these parts, in the order of the layout."""
    shapes = {"properties": parts.properties, "headers": parts.headers}
    return [
        pa.field(name, arrow_type(shapes[name])) if name in shapes else FIELDS[name]
        for name in BODY
        if name in parts.names
    ]


def _absent(field: pa.Field, count: int) -> pa.Array:
    """Return the values that an absent column stands for: empty data, otherwise nulls."""
    if field.name == "data":
        return pa.array([b""] * count, field.type)
    return pa.nulls(count, field.type)


def sparse_columns(batch: pa.RecordBatch, shape: StructShape) -> dict[str, pa.Array]:
    """Return the columns ``sparse`` and ``nulls`` for a batch whose rows all become sparse.

    Explicit nulls of rows that were not sparse are listed in ``nulls``.
    """
    columns: dict[str, pa.Array] = {"sparse": pa.array(np.ones(batch.num_rows, dtype=np.bool_))}
    if (nulls := nulls_column(batch, shape)) is not None:
        columns["nulls"] = nulls
    return columns


_EMPTY: Final = ChannelSchema(Parts(frozenset(), NO_SLOTS, NO_SLOTS))
