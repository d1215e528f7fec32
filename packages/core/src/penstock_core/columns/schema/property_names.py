"""Counts and limits the property names of a channel, including names inside dictionaries.

Every name may become a column for all readers of the channel. Publishers that generate names, from
ids or times for example, get an error before their events are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.layout import DICTIONARY, key_path
from penstock_core.columns.schema.schema import Parts
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.shapes import ListShape, StructShape
from penstock_core.vocabulary.errors import LimitReached

_SCHEMAS_MAX: Final = 4_096
"""Maximum number of schemas whose numbers are remembered, because their names are counted."""
_SCHEMAS_BYTES_MAX: Final = 256 << 10
"""Maximum number of bytes of serialized schemas that a channel remembers, because their names are
counted."""
_SHOWN_MAX: Final = 60
"""Number of characters of a long name shown in an error."""

NAMES_MAX: Final = 1_000
"""Default limit of property names per channel; a limit of 0 means no limit."""


class PropertyNames:
    """The property names of one channel."""

    __slots__ = ("_all_names", "_first", "_others", "_schemas", "_schemas_bytes")

    def __init__(self) -> None:
        self._all_names: frozenset[str] = frozenset()
        """The names. Channels with the names of a single schema share its set."""
        self._first: int | None = None
        """Number of the first schema whose names were added. Most channels have no other."""
        self._others: set[int] | None = None
        """Numbers of the schemas after the first; None until the second one is added."""
        self._schemas: set[bytes] | None = None
        """Serialized schemas whose names are all counted; None before the first one. A lookup of
        bytes is cheaper than a comparison of Arrow schemas."""
        self._schemas_bytes = 0
        """Total size of these schemas."""

    def __len__(self) -> int:
        return len(self._all_names)

    def add(self, schema: pa.Schema, schema_number: int | None = None) -> None:
        """Add the names of stored events with this schema, whose number is ``schema_number``."""
        if schema_number is not None and not self._is_new(schema_number):
            return
        names = _names.of(schema)
        if not names <= self._all_names:
            self._all_names = self._all_names | names if self._all_names else names

    def _is_new(self, schema_number: int) -> bool:
        """Record the number of a schema. Return True if it was new."""
        if schema_number == self._first:
            return False
        if self._first is None:
            self._first = schema_number
            return True
        if self._others is None:
            self._others = set()
        elif schema_number in self._others:
            return False
        elif len(self._others) >= _SCHEMAS_MAX:
            # A forgotten schema only costs comparing its names once more.
            self._others.clear()
        self._others.add(schema_number)
        return True

    def add_more(self, batch: pa.RecordBatch) -> None:
        """Add the property names that a stored batch has in ``more``."""
        self._all_names |= names_in_more(batch)

    def check(self, channel: str, batches: Iterable[Any], limit: int) -> None:
        """Raise ``LimitReached`` if the new names in ``batches`` would exceed ``limit``.

        ``batches`` are bodies with ``schema_bytes``, ``schema``, ``names`` and ``batch``.
        """
        if not limit:
            return
        new: dict[str, None] = {}
        for body in batches:
            if self._schemas is None or body.schema_bytes not in self._schemas:
                new |= self._new_in(body)
            if "more" in body.names:
                new |= dict.fromkeys(sorted(names_in_more(body.batch) - self._all_names))
        if not new:
            return
        count = len(self._all_names) + len(new)
        if count > limit:
            name = next(iter(new))
            shown = name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}..."
            others_clause = f" and {len(new) - 1} others" if len(new) > 1 else ""
            raise LimitReached(
                f"{channel} has {len(self._all_names)} property names, and {shown!r}"
                f"{others_clause} would make it {count}; the limit is {limit} "
                f"(limits.property_names_max). Publish the varying part of the names as values, "
                f"for example as a list of keys and values"
            )

    def _new_in(self, body: Any) -> dict[str, None]:
        """Return the names in a body's schema that the channel does not have yet, sorted."""
        new_names = names_in(body.schema) - self._all_names
        if not new_names:
            size = self._schemas_bytes + len(body.schema_bytes)
            if self._schemas is None or size > _SCHEMAS_BYTES_MAX:
                # Starting over is simpler than evicting single schemas, and happens rarely.
                self._schemas, size = set(), len(body.schema_bytes)
            self._schemas.add(body.schema_bytes)
            self._schemas_bytes = size
        return dict.fromkeys(sorted(new_names))


def names_in(schema: pa.Schema) -> frozenset[str]:
    """Return the paths of all properties in a schema, including properties inside dictionaries.

    Elements of a list have the path of the list.
    """
    return frozenset(_paths("", Parts.of(schema).properties))


_names = SchemaMemo(names_in)


def _paths(path: str, shape: StructShape) -> Iterator[str]:
    """Yield the paths of all properties in a shape, except the realm's stamp."""
    for slot in shape.slots:
        if slot.logical == DICTIONARY:
            continue
        property_path = key_path(path, slot.logical)
        yield property_path
        inner = slot.shape
        while isinstance(inner, ListShape):
            inner = inner.element
        if isinstance(inner, StructShape):
            yield from _paths(property_path, inner)


def names_in_more(batch: pa.RecordBatch) -> set[str]:
    """Return the names of the properties that a batch has in ``more``.

    Does not count names inside their values, because they never become columns.
    """
    cells = batch.column("more").drop_null().to_pylist()
    return {key_path("", name) for cell in cells for name in overflow.nodes(cell)}
