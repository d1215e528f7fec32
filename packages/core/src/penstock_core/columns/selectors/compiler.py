"""Compiles an expression to a function over frames, once per selector.

Conditions return a nullable boolean column (null = unknown) and combine by Kleene's logic. Values
return typed columns. No step works on single events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.moments import parse_moment, us_of
from penstock_core.columns.selectors import functions
from penstock_core.columns.selectors.arithmetic import calculated, negated
from penstock_core.columns.selectors.comparison import compared
from penstock_core.columns.selectors.expressions import (
    CONDITIONS,
    And,
    Arithmetic,
    Between,
    Compare,
    Comparison,
    DataLength,
    DataText,
    Distance,
    Each,
    Expression,
    Float,
    In,
    Integer,
    IsNull,
    Like,
    Matches,
    Negative,
    Not,
    Now,
    Or,
    Reference,
    Step,
    Text,
    Truth,
    each_references,
)
from penstock_core.columns.selectors.frames import (
    ElementFrame,
    Root,
    RowFrame,
    exploded,
    is_list,
    resolved,
)
from penstock_core.columns.selectors.outcomes import key_text
from penstock_core.columns.selectors.patterns import Check, search
from penstock_core.columns.selectors.topic_search import topic_search
from penstock_core.columns.selectors.typed_columns import (
    UNKNOWN,
    Column,
    ColumnType,
    TypedColumn,
    Value,
    first_known,
    kleene_and,
    kleene_or,
    rows_of,
    truth,
)
from penstock_core.columns.selectors.wording import canonical

Condition = Callable[[RowFrame], Column]
"""A compiled condition: returns true, false or null for each row of a frame."""
Valued = Callable[[RowFrame], Value]
"""A compiled value: returns the value for each row of a frame."""

_SETS: Final[dict[type[Expression], tuple[ColumnType, pa.DataType]]] = {
    Text: (ColumnType.TEXT, pa.string()),
    Integer: (ColumnType.INTEGER, pa.int64()),
}
"""Types of literals that ``IN`` looks up in a set, with the columns that the set applies to."""


def condition(node: Expression) -> Condition:
    """Compile ``node`` as a condition."""
    match node:
        case And(operands):
            return _chained(kleene_and, [condition(operand) for operand in operands])
        case Or(operands):
            return _chained(kleene_or, [condition(operand) for operand in operands])
        case Not(operand):
            inner = condition(operand)
            return lambda frame: pc.invert(inner(frame))
        case _:
            return _cached(node, _for_any_element(node, _predicate(node)))


def _cached(node: Expression, holds: Condition) -> Condition:
    """Return ``holds``, evaluated once per frame, or once per batch if it depends only on published
    values."""
    key = key_text(node)
    if key:
        return lambda frame: frame.outcome(key, holds)
    text = canonical(node)
    return lambda frame: frame.stamped(text, holds)


def _chained(combine: Callable[[Column, Column], Column], parts: list[Condition]) -> Condition:
    """Return a condition that combines the parts from left to right."""
    first, *conditions = parts

    def evaluate(frame: RowFrame) -> Column:
        outcome = first(frame)
        for condition in conditions:
            # The check may stop a slow selector between its parts.
            frame.check()
            outcome = combine(outcome, condition(frame))
        return outcome

    return evaluate


def _predicate(node: Expression) -> Condition:
    """Compile a predicate, or a boolean value that stands alone."""
    match node:
        case Compare(operator, left, right):
            left_of, right_of = value(left), value(right)
            return lambda frame: compared(operator, left_of(frame), right_of(frame))
        case Between():
            return _negated_if(node.negated, _between(node))
        case In():
            return _negated_if(node.negated, _in(node))
        case Like(operand, pattern, escape):
            return _negated_if(node.negated, _like(value(operand), search(pattern, escape)))
        case Matches(operand, text):
            return _negated_if(node.negated, _like(value(operand), topic_search(text)))
        case IsNull(operand):
            subject = value(operand)
            return _negated_if(not node.negated, lambda frame: _present(subject(frame)))
        case _:
            subject = value(node)
            return lambda frame: truth(subject(frame))


def _negated_if(is_negated: bool, inner: Condition) -> Condition:
    """Return the negation of a condition if ``is_negated``, otherwise the condition itself."""
    return (lambda frame: pc.invert(inner(frame))) if is_negated else inner


def _between(node: Between) -> Condition:
    """Compile ``BETWEEN`` as two comparisons of one value."""
    subject, low, high = value(node.operand), value(node.low), value(node.high)

    def evaluate(frame: RowFrame) -> Column:
        subject_value = subject(frame)
        return kleene_and(
            compared(Comparison.AT_LEAST, subject_value, low(frame)),
            compared(Comparison.AT_MOST, subject_value, high(frame)),
        )

    return evaluate


def _in(node: In) -> Condition:
    """Compile ``IN``: a set lookup if all options and the column have one type, otherwise single
    comparisons."""
    subject = value(node.operand)
    options: list[Valued] = []
    kinds = {type(option) for option in node.options}
    kind, stored = _SETS.get(kinds.pop(), (None, None)) if len(kinds) == 1 else (None, None)
    option_set = None
    if kind is not None:
        option_set = pa.array([getattr(option, "value", None) for option in node.options], stored)

    def evaluate(frame: RowFrame) -> Column:
        typed_columns = subject(frame)
        columns = [
            _member(typed_column.column, option_set)
            for typed_column in typed_columns
            if typed_column.kind is kind
        ]
        other_columns = tuple(
            typed_column for typed_column in typed_columns if typed_column.kind is not kind
        )
        if other_columns:
            # Compiled here, because most frames have no column of another type.
            options[:] = options or map(value, node.options)
            outcomes = [
                compared(Comparison.EQUAL, other_columns, option(frame)) for option in options
            ]
            any_equal = outcomes[0]
            for outcome in outcomes[1:]:
                any_equal = kleene_or(any_equal, outcome)
            columns.append(any_equal)
        return first_known(columns)

    return evaluate


def _member(column: Column, option_set: Column) -> Column:
    # For a null, Arrow's is_in() returns false, but the predicate is unknown.
    return pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=option_set), UNKNOWN)


def _like(subject: Valued, find: Callable[[Column, Check], Column]) -> Condition:
    """Return a condition that applies ``find`` to the texts of ``subject``; unknown for other
    values."""

    def evaluate(frame: RowFrame) -> Column:
        frame.check()
        texts = [column for kind, column in subject(frame) if kind is ColumnType.TEXT]
        return first_known([find(column, frame.check) for column in texts])

    return evaluate


def _present(typed_columns: Value) -> Column:
    """Return whether each row has a value of any type."""
    present: Column = pa.scalar(False)
    for typed_column in typed_columns:
        present = pc.or_(present, pc.is_valid(typed_column.column))
    return present


def value(node: Expression) -> Valued:
    """Compile ``node`` as a value."""
    match node:
        case Text() | Integer() | Float() | Truth():
            constant = _constant(node)
            return lambda frame: constant
        case Reference(steps):
            return lambda frame: frame.lookup(steps)
        case Arithmetic(operator, left, right):
            left_of, right_of = value(left), value(right)
            return lambda frame: calculated(operator, left_of(frame), right_of(frame))
        case Negative(operand):
            inner = value(operand)
            return lambda frame: negated(inner(frame))
        case _ if isinstance(node, CONDITIONS):
            holds = condition(node)
            return lambda frame: (TypedColumn(ColumnType.TRUTH, holds(frame)),)
        case _:
            return _function(node)


def _function(node: Expression) -> Valued:
    """Compile a function call."""
    match node:
        case Now():
            return functions.now
        case DataLength():
            return functions.data_length
        case DataText():
            return partial(functions.data_text, node)
        case Distance():
            return partial(functions.distance, node)
        case _:
            raise AssertionError(f"{type(node).__name__} cannot be compiled")


def _constant(node: Text | Integer | Float | Truth) -> Value:
    """Return a literal as a value; text that is a valid time also has a column of type MOMENT."""
    match node:
        case Text(text):
            typed_column = TypedColumn(ColumnType.TEXT, pa.scalar(text, pa.string()))
            moment = microseconds(text)
            if moment is None:
                return (typed_column,)
            return (typed_column, TypedColumn(ColumnType.MOMENT, pa.scalar(moment, pa.int64())))
        case Integer(number):
            return (TypedColumn(ColumnType.INTEGER, pa.scalar(number, pa.int64())),)
        case Float(number):
            return (TypedColumn(ColumnType.FLOAT, pa.scalar(number, pa.float64())),)
        case Truth(answer):
            return (TypedColumn(ColumnType.TRUTH, pa.scalar(answer)),)


def microseconds(text: str) -> int | None:
    """Return ISO 8601 text as microseconds since the epoch, by default in UTC; None for other
    text."""
    try:
        return us_of(parse_moment(text))
    except ValueError:
        return None


def _for_any_element(node: Expression, holds: Condition) -> Condition:
    """Return ``holds``, or, for a predicate on array elements, the condition that it holds for at
    least one element (SEM F2)."""
    references = each_references(node)
    if not references:
        return holds
    steps = references[0].steps

    def evaluate(frame: RowFrame) -> Column:
        return _any(frame, steps, frame.roots(steps), holds)

    return evaluate


def _any(
    frame: RowFrame, steps: tuple[Step, ...], roots: Sequence[Root], holds: Condition
) -> Column:
    """Return whether ``holds`` is true for any element of the arrays at ``roots``."""
    outcomes = []
    for column, inside in roots:
        each_index = inside.index(Each())
        tail = inside[each_index + 1 :]
        for list_column in filter(is_list, resolved(column, inside[:each_index])):
            elements, rows, present = exploded(list_column)
            inner = ElementFrame(frame, pa.array(rows), steps=steps, elements=elements, tail=tail)
            deeper = Each() in tail
            outcome = _any(inner, steps, [Root(elements, tail)], holds) if deeper else holds(inner)
            outcomes.append(_gathered(rows_of(outcome, inner.rows), rows, present))
    return first_known(outcomes)


def _gathered(outcome: Column, rows: Any, present: Any) -> Column:
    """Return an outcome for each row from the outcomes of its elements: true if it is true for any
    element, otherwise unknown if it is unknown for any element, otherwise false. A row without a
    list is unknown. ``rows`` has the row of each element, ``present`` marks rows with a list."""
    is_true = np.zeros(len(present), dtype=bool)
    is_true[rows[outcome.fill_null(fill_value=False).to_numpy(zero_copy_only=False)]] = True
    is_unknown = np.zeros(len(present), dtype=bool)
    is_unknown[rows[outcome.is_null().to_numpy(zero_copy_only=False)]] = True
    return pa.array(is_true, mask=~present | (is_unknown & ~is_true))
