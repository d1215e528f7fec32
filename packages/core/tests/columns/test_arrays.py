"""Arrays of a few values equal those that Arrow makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from penstock_core.columns.schema.arrays import FEW, array_of


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -(2**63)], pa.int64()),
        ([1.5, float("inf")], pa.float64()),
        ([True, False, True], pa.bool_()),
        (["", "ü", "x"], pa.string()),
        ([b"", b"\0x"], pa.binary()),
        ([b"one"], pa.binary()),
        ([1, None], pa.int64()),
        ([None], pa.null()),
        ([1], pa.int8()),
    ],
)
def test_few_or_many_values_make_the_same_array(values: list[Any], kind: pa.DataType) -> None:
    for some in (values, values * FEW, []):
        result = array_of(some, kind)
        result.validate(full=True)

        assert result.equals(pa.array(some, kind))
        assert result.to_pylist() == some


def test_what_does_not_fit_is_not_cut() -> None:
    with pytest.raises(OverflowError):
        array_of([2**63], pa.int64())


@pytest.mark.process
def test_the_first_event_does_not_wait_for_imports() -> None:
    """Neither pandas nor the compute functions are loaded by a plain first publish."""
    program = """
import sys
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.digest import digest
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import Span
body = body_of([Event(b"x", tag="t", properties={"a": 1, "b": 2.0, "c": "x", "d": True})])
check_body(body)
digest(body, 1000)
batch = stamp(body, Span(0, 1), 5)
batch_bytes(ChannelSchema.empty().grown(body.schema).conform(batch))
print(sorted({"pandas", "pyarrow.compute"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
