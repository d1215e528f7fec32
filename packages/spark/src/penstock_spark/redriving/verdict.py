"""Decides a portion of dead events: published to a channel, dropped, or kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.events.origin import origins_of, restored
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.redriving.dead import ROUTING_COLUMNS, VIEW_COLUMNS, rows_by_id
from penstock_spark.replaying.rows import flat_body, marked, with_columns

REDRIVEN: Final = "redriven"
DROPPED: Final = "dropped"
KEPT: Final = "kept"
OUTCOMES: Final = (REDRIVEN, DROPPED, KEPT)
"""The values that a transformation may return in its column ``outcome``."""

MARK: Final = "redrive_of"
"""Property of redriven events with the channel, id and time of the original event."""

_NOT_PAYLOAD: Final = ("event_id", "origin", "published", *ROUTING_COLUMNS)
"""Columns of a transformation's result that are not published with the event."""

Bools = npt.NDArray[np.bool_]


class RedriveRules(Struct, frozen=True):
    """The settings of a redrive that apply to all events."""

    step: str
    """Name of the pipeline step, which the records contain."""
    targets: Collection[str]
    """Names of all channels and queues that events can be published to."""
    store: str
    """Name of the dead event store."""
    channel: str = ""
    """Name of the target of all events; empty means that each event returns to its origin."""
    unmatched: str = KEPT
    """Outcome of an event that is missing in the result of a transformation."""
    marks: bool = False
    """Whether redriven events get the property ``redrive_of``."""


class RedriveVerdict(Struct, frozen=True):
    """The decisions on a portion of dead events."""

    bodies: Mapping[str, pa.RecordBatch]
    """The events to publish, by channel."""
    redriven: Int64s
    """Ids of the dead events that are published again, and leave the store."""
    dropped: Int64s
    """Ids of the dead events that are removed without being published."""
    kept: Int64s
    """Ids of the dead events that stay in the store."""
    record: pa.RecordBatch | None
    """Body with a record of each event that leaves the store; None if all events are kept."""
    homeless: int = 0
    """Number of kept events without a target channel."""

    @property
    def published(self) -> Counter[str]:
        """Number of published events by channel."""
        return Counter({name: body.num_rows for name, body in self.bodies.items()})


def verdict_unchanged(dead: pa.RecordBatch, rules: RedriveRules) -> RedriveVerdict:
    """Return the verdict of a redrive without a transformation: each event is published again
    unchanged, if it has a target."""
    body = restored(dead)
    rows = np.arange(dead.num_rows, dtype=np.int64)
    return _verdict(
        dead,
        rules,
        body,
        rows=rows,
        targets=_targets(dead, rules, None, rows=rows),
        rows_by_outcome=None,
    )


def verdict_of_result(
    dead: pa.RecordBatch, result: pa.Table, rules: RedriveRules
) -> RedriveVerdict:
    """Return the verdict that the result of a transformation describes.

    Each row of ``result`` is published for the dead event with its ``event_id``. The column
    ``outcome`` sets the outcome of the event (null means ``redriven``), the column ``channel`` its
    target. Raises ``InvalidArgument`` if a row names no event of the portion, or has an unknown
    outcome or channel, or if rows of one event contradict each other.
    """
    result = result.combine_chunks()
    columns = {name: _combined(result.column(name)) for name in result.column_names}
    rows = _rows(dead, columns)
    # Spark does not keep the order of rows; events are published in the order of the dead events.
    order = np.argsort(rows, kind="stable")
    rows, columns = rows[order], {name: array.take(order) for name, array in columns.items()}
    outcomes = _outcomes(columns.get("outcome"), len(rows))
    rows_by_outcome = {name: np.unique(rows[outcomes == name]) for name in OUTCOMES}
    _check_agree(dead, rows_by_outcome)
    is_redriven = outcomes == REDRIVEN
    mask = pa.array(is_redriven)
    payload = {
        name: array.filter(mask) for name, array in columns.items() if name not in _NOT_PAYLOAD
    }
    rows = rows[is_redriven]
    body = flat_body(payload, len(rows)) if len(rows) else restored(dead).slice(0, 0)
    body = _with_overflow(body, dead, rows)
    channels = columns.get("channel")
    targets = _targets(dead, rules, None if channels is None else channels.filter(mask), rows=rows)
    return _verdict(dead, rules, body, rows=rows, targets=targets, rows_by_outcome=rows_by_outcome)


def _verdict(
    dead: pa.RecordBatch,
    rules: RedriveRules,
    body: pa.RecordBatch,
    rows: Int64s,
    targets: npt.NDArray[np.object_],
    rows_by_outcome: Mapping[str, Int64s] | None,
) -> RedriveVerdict:
    """Return the verdict on the portion ``dead``.

    For each row of ``body``, ``rows`` has the index of its dead event and ``targets`` the channel.
    ``rows_by_outcome`` has the indexes of the dead events with each outcome; None means that all
    are redriven.
    """
    ids = ids_of(dead)
    is_publishable = np.array([target in rules.targets for target in targets], dtype=np.bool_)
    # If one row of an event has no target, none of its rows is published: a redrive of the event
    # later would publish the others twice.
    homeless = np.unique(rows[~is_publishable])
    is_routed = ~np.isin(rows, homeless)
    outcome_of = np.full(len(ids), rules.unmatched, dtype=object)
    if rows_by_outcome is None:
        outcome_of[:] = REDRIVEN
    else:
        for name, rows_of_outcome in rows_by_outcome.items():
            outcome_of[rows_of_outcome] = name
    outcome_of[homeless] = KEPT
    if rules.marks and body.num_rows:
        body = _marked(body, dead, rows)
    bodies = {}
    target_of = np.full(len(ids), None, dtype=object)
    for name in dict.fromkeys(targets[is_routed].tolist()):
        is_for_target = is_routed & (targets == name)
        bodies[name] = body.filter(pa.array(is_for_target))
        target_of[rows[is_for_target]] = name
    counts = np.bincount(rows[is_routed], minlength=len(ids))
    is_leaving = outcome_of != KEPT
    return RedriveVerdict(
        bodies,
        ids[outcome_of == REDRIVEN],
        ids[outcome_of == DROPPED],
        kept=ids[~is_leaving],
        record=_record(dead, rules, is_leaving, state=outcome_of, targets=target_of, counts=counts)
        if is_leaving.any()
        else None,
        homeless=len(homeless),
    )


def _rows(dead: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> Int64s:
    """Return the index of the dead event of each row of a result.

    Raises ``InvalidArgument`` if a row has no valid ``event_id``.
    """
    ids = columns.get("event_id")
    if ids is None or not pa.types.is_integer(ids.type):
        has = "no column event_id" if ids is None else f"event_id of type {ids.type}"
        raise InvalidArgument(
            f"the result has {has}; each row must have the event_id of its dead event (the columns "
            f"of the result are {', '.join(columns)})"
        )
    if ids.null_count:
        raise InvalidArgument(
            "the result has rows without event_id; each row must name a dead event"
        )
    rows = rows_by_id(dead, ids.cast(pa.int64()))
    if (rows < 0).any():
        unknown_id = np.asarray(ids)[rows < 0][0]
        raise InvalidArgument(
            f"the result has a row with event_id {unknown_id}, which is not the id of one of these "
            f"dead events; keep the ids as they are"
        )
    return rows


def _outcomes(outcome_column: pa.Array | None, count: int) -> npt.NDArray[np.object_]:
    """Return the outcome of each of the ``count`` rows of a result. Raises ``InvalidArgument`` for
    an unknown outcome."""
    if outcome_column is None:
        return np.full(count, REDRIVEN, dtype=object)
    names = pc.fill_null(outcome_column.cast(pa.string()), REDRIVEN)
    unknown = sorted(set(pc.unique(names).to_pylist()) - set(OUTCOMES))
    if unknown:
        raise InvalidArgument(
            f"the result has the outcome {unknown[0]!r}; it must be {', '.join(OUTCOMES)} or null"
        )
    return np.asarray(names.to_numpy(zero_copy_only=False), dtype=object)


def _check_agree(dead: pa.RecordBatch, rows_by_outcome: Mapping[str, Int64s]) -> None:
    """Raise ``InvalidArgument`` if a dead event has rows with different outcomes."""
    counts = np.zeros(dead.num_rows, dtype=np.int64)
    for rows in rows_by_outcome.values():
        counts[rows] += 1
    if (counts > 1).any():
        event = ids_of(dead)[int(np.argmax(counts > 1))]
        outcomes = [
            name for name, rows in rows_by_outcome.items() if int(np.argmax(counts > 1)) in rows
        ]
        raise InvalidArgument(
            f"the result has rows of event {event} with the outcomes {' and '.join(outcomes)}; "
            f"give each event one outcome"
        )


def _targets(
    dead: pa.RecordBatch, rules: RedriveRules, named_channels: pa.Array | None, rows: Int64s
) -> npt.NDArray[np.object_]:
    """Return the name of the target of each row, or None if it has none.

    The target is ``named_channels`` of the row, otherwise the channel of the step, otherwise the
    origin of the dead event. Raises ``InvalidArgument`` if a named channel is not a target.
    """
    if rules.channel:
        default = pa.repeat(pa.scalar(rules.channel), len(rows))
    else:
        origins = origins_of(dead)
        # The dead event store is never a target: the event would return to where it is.
        origins = pc.if_else(pc.equal(origins, rules.store), pa.scalar(None, pa.string()), origins)
        default = origins.take(pa.array(rows))
    if named_channels is not None:
        _check_named(named_channels, rules)
        default = pc.coalesce(named_channels.cast(pa.string()), default)
    return np.asarray(default.to_numpy(zero_copy_only=False), dtype=object)


def _check_named(named_channels: pa.Array, rules: RedriveRules) -> None:
    """Raise ``InvalidArgument`` if the result names a channel that is not a target."""
    for name in pc.unique(named_channels.cast(pa.string())).to_pylist():
        if name is not None and (name not in rules.targets or name == rules.store):
            raise InvalidArgument(
                f"the result has the channel {name!r}, which cannot be published to"
            )


def _with_overflow(body: pa.RecordBatch, dead: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    """Return ``body`` with the properties of the dead events that did not fit into columns, which
    the transformation did not receive."""
    index = dead.schema.get_field_index("more")
    if index < 0 or not len(rows):
        return body
    more = dead.column(index).take(pa.array(rows))
    return with_columns(body, {"more": more}) if more.null_count < len(more) else body


def _marked(body: pa.RecordBatch, dead: pa.RecordBatch, rows: Int64s) -> pa.RecordBatch:
    """Return ``body`` with the property ``redrive_of``, which names the original of each event."""
    index = pa.array(rows)
    origin = _origin(dead)
    names = pc.struct_field(origin, "store").take(index)
    ids = pc.struct_field(origin, "event_id").take(index)
    times = pc.struct_field(origin, "published").take(index)
    return marked(body, names, ids, published=times, name=MARK)


def _origin(dead: pa.RecordBatch) -> pa.StructArray:
    """Return the column ``origin``; nulls if the events were not moved here as dead events."""
    index = dead.schema.get_field_index("origin")
    if index >= 0:
        return dead.column(index)
    return pa.nulls(dead.num_rows, VIEW_COLUMNS["origin"])


def _record(
    dead: pa.RecordBatch,
    rules: RedriveRules,
    is_leaving: Bools,
    state: npt.NDArray[np.object_],
    targets: npt.NDArray[np.object_],
    counts: Int64s,
) -> pa.RecordBatch:
    """Return a record of each event that leaves the store.

    A record contains the event's origin, its cause of death, its outcome
    (``state``), its target, and the number of events published for it (``counts``).
    """
    origin = _origin(dead)
    count = dead.num_rows
    columns = {
        "step": pa.repeat(pa.scalar(rules.step), count),
        "outcome": pa.array(state.tolist(), pa.string()),
        "store": pa.repeat(pa.scalar(rules.store), count),
        "dead_id": dead.column("event_id"),
        "origin": pc.struct_field(origin, "store"),
        "origin_id": pc.struct_field(origin, "event_id"),
        "origin_published": pc.struct_field(origin, "published"),
        "cause": pc.struct_field(origin, "cause"),
        "died": pc.struct_field(origin, "at"),
        "redeliveries": pc.struct_field(origin, "redeliveries"),
        "target": pa.array(targets.tolist(), pa.string()),
        "events": pa.array(counts, pa.int64()),
    }
    mask = pa.array(is_leaving)
    leaving_columns = {name: array.filter(mask) for name, array in columns.items()}
    leaving_count = int(is_leaving.sum())
    return with_columns(
        flat_body(leaving_columns, leaving_count), {"tag": leaving_columns["outcome"]}
    )


def _combined(column: pa.ChunkedArray) -> pa.Array:
    """Return the chunks of a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
