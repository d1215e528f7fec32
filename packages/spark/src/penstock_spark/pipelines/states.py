"""The state of each key, made from its events by Spark's own aggregates.

For each column the value comes from the newest event that sets it: that is how the merge engine
merges (SEM K2), and what ``max_by`` finds. So no Python runs for events or keys, and the events may
come in any order, and twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.nulls import NULLS
from penstock_spark.options import nearest
from penstock_spark.pipelines.expressions import judged_by_spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BY_ID: Final = "event_id"
DELETED: Final = "deleted"
RENAMED: Final[Mapping[str, str]] = {
    "event_id": "last_event_id",
    "published": "last_published",
    "channel": "from_channel",
}
"""Columns of the newest event of a key that are not properties, with their names in a result: a
channel would assign its own values, and take ``channel`` for where to publish."""


class StateRules(Struct, frozen=True, kw_only=True):
    """The rules by which the events of a key become its state."""

    key: tuple[str, ...]
    order: str = BY_ID
    """SQL: which of two events is newer. Events without it are left out."""
    deltas: bool = False
    """Whether events have only what has changed; otherwise each has everything."""
    replaces: str = ""
    """SQL condition: which events are all there is, among deltas."""
    deleted: str = ""
    """SQL condition: which events take their key away."""


def states(events: DataFrame, rules: StateRules) -> DataFrame:
    """The state of each key, one row each; streaming where ``events`` is (output mode update).

    Columns: the key, ``last_event_id`` and ``last_published`` where the events have them, all
    others, and ``deleted`` if ``rules`` say what deletes. A null in a delta changes nothing unless
    the column ``nulls`` (option ``includeNulls``) names it.

    Raises ``InvalidArgument`` naming the rule that does not fit the events' columns.
    """
    from pyspark.sql import functions as sf

    for name in rules.key:
        if name not in events.columns:
            raise InvalidArgument(
                f"key is {name!r}, which is not a column: {nearest(name, tuple(events.columns))}"
            )
    narrow = {name: kind for name, kind in events.dtypes if kind in WIDER}
    events = widened(events)
    aggregation = _Aggregation(events, rules)
    keyed = events.where(aggregation.order.isNotNull())
    for name in rules.key:
        keyed = keyed.where(column_of(name).isNotNull())
    found = keyed.groupBy(*map(column_of, rules.key)).agg(*aggregation.values())
    names = [*rules.key, *aggregation.names]
    if rules.deleted:
        gone = sf.coalesce(column_of(_GONE) == column_of(_NEWEST), sf.lit(col=False))
        found = found.withColumn(DELETED, gone)
        names.append(DELETED)
    columns = [(name, column_of(name)) for name in names]
    return found.select(
        *(
            column.cast(narrow[name]).alias(name) if name in narrow else column
            for name, column in columns
        )
    )


WIDER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int"), "bigint"),
    "float": "double",
}
"""The wider types in which Spark keeps numbers. The types in a query's state can never change, so a
channel whose numbers grow would otherwise end its queries."""


def widened(events: DataFrame) -> DataFrame:
    """The events with numbers of the widest type of their sort."""
    narrow = {name: WIDER[kind] for name, kind in events.dtypes if kind in WIDER}
    return events.withColumns({name: column_of(name).cast(kind) for name, kind in narrow.items()})


_NEWEST: Final = "__newest"
_GONE: Final = "__gone"


class _Aggregation:
    """The aggregates for events of some columns."""

    def __init__(self, events: DataFrame, rules: StateRules) -> None:
        self._rules = rules
        self._has_nulls = NULLS in events.columns
        self.order = expression_of(events, "order", rules.order)
        self._deleted = _condition(events, "deleted", rules.deleted)
        self._replaces = _condition(events, "replaces", rules.replaces)
        left_out = {*rules.key, *RENAMED, *((NULLS,) if rules.deltas else ())}
        self._columns = [name for name in events.columns if name not in left_out]
        self._stamps = [name for name in RENAMED if name in events.columns]
        self._stamps = [name for name in self._stamps if name not in rules.key]
        self._kinds = {field.name: field.dataType.typeName() for field in events.schema}

    @property
    def names(self) -> list[str]:
        """The columns of a result, without the key."""
        return [*(RENAMED[name] for name in self._stamps), *self._columns]

    def values(self) -> list[Column]:
        from pyspark.sql import functions as sf

        newest = [
            sf.max_by(column_of(name), self.order).alias(RENAMED[name]) for name in self._stamps
        ]
        values = [self._value(name).alias(name) for name in self._columns]
        if not self._rules.deleted:
            return [*newest, *values]
        marks = [
            sf.max(self.order).alias(_NEWEST),
            sf.max(sf.when(self._deleted, self.order)).alias(_GONE),
        ]
        return [*newest, *values, *marks]

    def _value(self, name: str) -> Column:
        from pyspark.sql import functions as sf

        value = column_of(name)
        if self._rules.deleted:
            value = sf.when(~self._deleted, value)
        if not self._rules.deltas:
            return sf.max_by(value, self.order)
        says = self._says(name) | self._replaces | self._deleted
        # For max_by an event without an order does not exist: it sets nothing in this column.
        found = sf.max_by(value, sf.when(says, self.order))
        return sf.coalesce(found, sf.lit(b"")) if self._is_payload(name) else found

    def _says(self, name: str) -> Column:
        """Whether an event sets the column, if only to null."""
        from pyspark.sql import functions as sf

        says = column_of(name).isNotNull()
        if self._is_payload(name):
            return says & (sf.octet_length(column_of(name)) > 0)
        if not self._has_nulls:
            return says
        return says | sf.coalesce(sf.array_contains(column_of(NULLS), name), sf.lit(col=False))

    def _is_payload(self, name: str) -> bool:
        """Whether it is the column ``data``, which is never null; an empty value sets nothing."""
        return name == "data" and self._kinds[name] == "binary"


def column_of(name: str) -> Column:
    """The column of exactly this name, whatever characters it has."""
    from pyspark.sql import functions as sf

    quoted = name.replace("`", "``")
    return sf.col(f"`{quoted}`")


def expression_of(events: DataFrame, key: str, text: str) -> Column:
    """An expression over the columns of ``events``.

    Raises ``InvalidArgument`` that begins with ``key`` where it is none.
    """
    from pyspark.sql import functions as sf

    with judged_by_spark(key, text):
        found = sf.expr(text)
        events.select(found).schema  # noqa: B018 - Spark looks at it now
    return found


def _condition(events: DataFrame, key: str, text: str) -> Column:
    """True or false for each event, never null."""
    from pyspark.sql import functions as sf

    if not text:
        return sf.lit(col=False)
    condition = expression_of(events, key, text)
    kind = events.select(condition.alias("condition")).schema[0].dataType.typeName()
    if kind != "boolean":
        raise InvalidArgument(f"{key} is {text!r}, a value of type {kind}; it must be a condition")
    return sf.coalesce(condition, sf.lit(col=False))
