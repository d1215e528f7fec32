"""Latest states by key as a streaming DataFrame."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.pipelines.states import StateRules as StateRules
    from penstock_spark.pipelines.states import states as states

__all__ = ["StateRules", "states"]
