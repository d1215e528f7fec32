"""The events of all shapes: the same bytes and three properties for every contender."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

PROPERTIES = 3


class Events(NamedTuple):
    """Events as rows of an application, without the types of a client library."""

    datas: Sequence[bytes]
    properties: Sequence[dict[str, Any]]
    price: float
    """The sum of the prices, which a consumer must compute, too."""
    columns: Columns

    def __len__(self) -> int:
        return len(self.datas)


class Columns:
    """Events as columns, for an application that works on them."""

    def __init__(self, datas: Sequence[bytes], properties: Sequence[dict[str, Any]]) -> None:
        self._datas = datas
        self._properties = properties

    @cached_property
    def table(self) -> pa.Table:
        """The events as a table."""
        names = self._properties[0]
        return pa.table(
            {"data": pa.array(self._datas, pa.binary())}
            | {name: [row[name] for row in self._properties] for name in names}
        )


def pool(count: int, batch: int, size: int) -> list[Events]:
    """Return ``count`` batches of ``batch`` events with ``size`` bytes of data each."""
    return [_events(first, batch, size) for first in range(0, count * batch, batch)]


def keyed_pool(count: int, batch: int, size: int, values: int) -> list[Events]:
    """Return batches as :func:`pool` does, whose properties ``sku`` and ``quantity`` each have one
    of ``values`` values, chosen at random."""
    draw = Random(7).randrange
    return [
        _rows(
            size,
            first,
            [
                {
                    "sku": f"sku-{draw(values):06d}",
                    "price": number % 100 * 0.5,
                    "quantity": draw(values),
                }
                for number in range(first, first + batch)
            ],
        )
        for first in range(0, count * batch, batch)
    ]


def _events(first: int, count: int, size: int) -> Events:
    properties: list[dict[str, Any]] = [
        {"sku": f"sku-{number % 1000:04d}", "price": number % 100 * 0.5, "quantity": number % 10}
        for number in range(first, first + count)
    ]
    return _rows(size, first, properties)


def _rows(size: int, first: int, properties: list[dict[str, Any]]) -> Events:
    """Return a batch of events with these properties; their data begin with a number that counts
    from ``first`` on."""
    count = len(properties)
    datas = [b"%0*d" % (size, number) for number in range(first, first + count)]
    events = Events(
        datas,
        properties,
        sum(row["price"] for row in properties),
        columns=Columns(datas, properties),
    )
    # The table is computed here, so that the measurement does not include it.
    assert events.columns.table.num_rows == count, "the table has a row for each event"
    return events


class Encoded(msgspec.Struct, array_like=True):
    """An event of a peer without typed properties: all its fields are in the payload."""

    data: bytes
    properties: dict[str, Any]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Encoded).decode
