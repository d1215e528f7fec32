"""What becomes of a step that an event makes fail: the event is buried, and the step goes on.

The search itself is :mod:`penstock.spark.poison`; here is how a step is run on a part of its
events: planned again with a table of them in the place of its stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from penstock.core.vocabulary.errors import InvalidArgument
from penstock.spark.pipelines.definition import Pipeline
from penstock.spark.pipelines.standing import QUERY
from penstock.spark.pipelines.step import Context, Flow, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Replaceable(Context, Protocol):
    """A context whose sources can be replaced."""

    instead: dict[str, DataFrame]


class Burial(Struct, frozen=True):
    """What came of it."""

    text: str = ""
    """Which events were buried; empty when none was."""
    why_none: str = ""


def bury(pipeline: Pipeline, step: Step, context: Replaceable) -> Burial:
    """Find and bury the events that made the last micro-batch of a step's query fail."""
    from penstock.spark.poison import bury_poison

    source = pipeline.bound_source(step)

    def attempt(table: DataFrame) -> None:
        context.instead[source.name] = table
        planned = step.plan(context)
        if not isinstance(planned, Flow):
            raise InvalidArgument("poison is for steps that run as a query")
        planned.frame.write.format("noop").mode("overwrite").save()

    options = {"url": context.url, **source.format_options()}
    verdict = bury_poison(context.spark, options, f"{context.checkpoint}/{QUERY}", attempt)
    buried = ", ".join(f"event {each.event_id} of {each.channel}" for each in verdict.buried)
    return Burial(buried, verdict.why_none)
