"""Computes the state of each key from its events by Spark's aggregates.

A column of a state has the value of the newest event that sets the column, as in the merge engine
(SEM K2). Spark's ``max_by`` computes this, so no Python code runs for each event or key, and events
may arrive in any order and more than once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.columns.nulls import NULLS
from penstock_spark.options import nearest
from penstock_spark.pipelines.expressions import explaining_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BY_ID: Final = "event_id"
DELETED: Final = "deleted"
RENAMED: Final[Mapping[str, str]] = {
    "event_id": "last_event_id",
    "published": "last_published",
    "channel": "from_channel",
}
"""Columns of a key's newest event that are not properties, with their names in a result. They are
renamed because the target channel sets ``event_id`` and ``published`` itself, and uses ``channel``
for routing."""


class StateRules(Struct, frozen=True, kw_only=True):
    """The rules that compute the state of a key from its events."""

    key: tuple[str, ...]
    """Names of the columns of the key."""
    order: str = BY_ID
    """SQL expression that orders events: of two events, the one with the greater value is newer.
    Events with null are left out."""
    deltas: bool = False
    """Whether events contain only the changed columns; otherwise each event is a complete state."""
    replaces: str = ""
    """SQL condition that is true for the deltas that are complete states."""
    deleted: str = ""
    """SQL condition that is true for events that delete their key."""


def states(events: DataFrame, rules: StateRules) -> DataFrame:
    """Return a table with one row for each key, its state.

    If ``events`` is a stream, the result is a stream for the output mode ``update``. Its columns
    are the key, ``last_event_id`` and ``last_published`` if the events have ids and times, all
    other columns of the events, and ``deleted`` if ``rules.deleted`` is set. A null in a delta
    changes nothing unless the event's column ``nulls`` (option ``includeNulls``) names the column.

    Raises ``InvalidArgument`` with the name of the rule that does not fit the columns of
    ``events``.
    """
    from pyspark.sql import functions as sf

    for name in rules.key:
        if name not in events.columns:
            raise InvalidArgument(
                f"key is {name!r}, which is not a column: {nearest(name, tuple(events.columns))}"
            )
    # Results have the original types; only the stored state of the query has the wider ones.
    original_types = {name: kind for name, kind in events.dtypes if kind in WIDER}
    events = widen_numbers(events)
    aggregation = _Aggregation(events, rules)
    keyed = events.where(aggregation.order.isNotNull())
    for name in rules.key:
        keyed = keyed.where(column_of(name).isNotNull())
    aggregated = keyed.groupBy(*map(column_of, rules.key)).agg(*aggregation.values())
    names = [*rules.key, *aggregation.names]
    if rules.deleted:
        is_deleted = sf.coalesce(column_of(_DELETED_AT) == column_of(_NEWEST), sf.lit(col=False))
        aggregated = aggregated.withColumn(DELETED, is_deleted)
        names.append(DELETED)
    columns = [(name, column_of(name)) for name in names]
    return aggregated.select(
        *(
            column.cast(original_types[name]).alias(name) if name in original_types else column
            for name, column in columns
        )
    )


WIDER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int"), "bigint"),
    "float": "double",
}
"""Types of numbers in a query's state, by original type. Spark never lets a type of the state
change, so without the wider types a query would end when a channel gets larger numbers."""


def widen_numbers(events: DataFrame) -> DataFrame:
    """Return the events with all integers as BIGINT and all floats as DOUBLE."""
    wider_types = {name: WIDER[kind] for name, kind in events.dtypes if kind in WIDER}
    return events.withColumns(
        {name: column_of(name).cast(kind) for name, kind in wider_types.items()}
    )


_NEWEST: Final = "__newest"
_DELETED_AT: Final = "__gone"


class _Aggregation:
    """Builds the aggregate expressions that compute the columns of a state."""

    def __init__(self, events: DataFrame, rules: StateRules) -> None:
        self._rules = rules
        self._has_nulls = NULLS in events.columns
        self.order = expression_of(events, "order", rules.order)
        self._deleted = _condition(events, "deleted", rules.deleted)
        self._replaces = _condition(events, "replaces", rules.replaces)
        left_out = {*rules.key, *RENAMED, *((NULLS,) if rules.deltas else ())}
        self._columns = [name for name in events.columns if name not in left_out]
        self._renamed_columns = [name for name in RENAMED if name in events.columns]
        self._renamed_columns = [name for name in self._renamed_columns if name not in rules.key]
        self._kinds = {field.name: field.dataType.typeName() for field in events.schema}

    @property
    def names(self) -> list[str]:
        """Names of the columns of a result, without those of the key."""
        return [*(RENAMED[name] for name in self._renamed_columns), *self._columns]

    def values(self) -> list[Column]:
        """Return the aggregate for each of :attr:`names`, and two more if events can delete their
        key: the order of the newest event and of the newest deletion."""
        from pyspark.sql import functions as sf

        newest = [
            sf.max_by(column_of(name), self.order).alias(RENAMED[name])
            for name in self._renamed_columns
        ]
        values = [self._value(name).alias(name) for name in self._columns]
        if not self._rules.deleted:
            return [*newest, *values]
        deletion_columns = [
            sf.max(self.order).alias(_NEWEST),
            sf.max(sf.when(self._deleted, self.order)).alias(_DELETED_AT),
        ]
        return [*newest, *values, *deletion_columns]

    def _value(self, name: str) -> Column:
        """Return the aggregate that computes the value of a column."""
        from pyspark.sql import functions as sf

        column = column_of(name)
        if self._rules.deleted:
            column = sf.when(~self._deleted, column)  # null for an event that deletes the key
        if not self._rules.deltas:
            return sf.max_by(column, self.order)
        is_set = self._is_set(name) | self._replaces | self._deleted
        # `max_by` ignores rows whose order is null: here, the events that do not set the column.
        value = sf.max_by(column, sf.when(is_set, self.order))
        return sf.coalesce(value, sf.lit(b"")) if self._is_payload(name) else value

    def _is_set(self, name: str) -> Column:
        """Return a condition that is true for events that set the column, to a value or to null."""
        from pyspark.sql import functions as sf

        is_set = column_of(name).isNotNull()
        if self._is_payload(name):
            return is_set & (sf.octet_length(column_of(name)) > 0)
        if not self._has_nulls:
            return is_set
        return is_set | sf.coalesce(sf.array_contains(column_of(NULLS), name), sf.lit(col=False))

    def _is_payload(self, name: str) -> bool:
        """Return whether the column is the event part ``data``. It is never null; an empty value
        means that the event does not set it."""
        return name == "data" and self._kinds[name] == "binary"


def column_of(name: str) -> Column:
    """Return the column with this name, which may contain any characters."""
    from pyspark.sql import functions as sf

    quoted = name.replace("`", "``")
    return sf.col(f"`{quoted}`")


def expression_of(events: DataFrame, key: str, text: str) -> Column:
    """Return the SQL expression ``text`` over the columns of ``events``.

    Raises ``InvalidArgument``, with a text that begins with ``key``, if Spark refuses the
    expression.
    """
    from pyspark.sql import functions as sf

    with explaining_sql(key, text):
        expression = sf.expr(text)
        events.select(expression).schema  # noqa: B018 - makes Spark check it now
    return expression


def _condition(events: DataFrame, key: str, text: str) -> Column:
    """Return the SQL condition ``text`` over events, with null replaced by false; always false for
    an empty text.

    Raises ``InvalidArgument`` if the expression is not a condition.
    """
    from pyspark.sql import functions as sf

    if not text:
        return sf.lit(col=False)
    condition = expression_of(events, key, text)
    kind = events.select(condition.alias("condition")).schema[0].dataType.typeName()
    if kind != "boolean":
        raise InvalidArgument(f"{key} is {text!r}, a value of type {kind}; it must be a condition")
    return sf.coalesce(condition, sf.lit(col=False))
