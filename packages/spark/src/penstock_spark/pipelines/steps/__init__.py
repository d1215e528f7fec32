"""The kinds of steps: each is a module that is loaded when a definition names the kind."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final, cast

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.options import nearest
from penstock_spark.pipelines.step import Step

KINDS: Final[Mapping[str, str]] = {
    "query": "penstock_spark.pipelines.steps.query:Query",
    "archive": "penstock_spark.pipelines.steps.archive:ArchiveStep",
    "replay": "penstock_spark.pipelines.steps.replay:ReplayStep",
    "roll-up": "penstock_spark.pipelines.steps.rollup:RollUpStep",
    "latest": "penstock_spark.pipelines.steps.latest:LatestStep",
    "redrive": "penstock_spark.pipelines.steps.redrive:RedriveStep",
}
"""Module and class of each kind. ``query`` is the default kind."""


def step_class(kind: str) -> type[Step]:
    """Return the class of a kind. Raises ``InvalidArgument`` with a hint for an unknown kind."""
    place = KINDS.get(kind)
    if place is None:
        raise InvalidArgument(f"kind is {kind!r}: {nearest(kind, tuple(KINDS))}")
    module, _, name = place.partition(":")
    return cast("type[Step]", getattr(import_module(module), name))
