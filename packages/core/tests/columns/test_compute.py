"""Arrow's compute functions are loaded when they are used for the first time."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pyarrow.compute
import pytest

from penstock_core.columns.schema import compute as pc


def test_a_function_is_the_one_arrow_has() -> None:
    assert pc.struct_field is pyarrow.compute.struct_field
    assert pc.is_nan(pa.array([1.0, float("nan")])).to_pylist() == [False, True]


def test_a_function_arrow_has_not_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        _ = pc.no_such_function


@pytest.mark.process
def test_connecting_loads_none() -> None:
    program = (
        "import sys, penstock.client.sync.sync; before = 'pyarrow.compute' in sys.modules; "
        "from penstock_core.columns.schema import compute; compute.equal; "
        "print(before, 'pyarrow.compute' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "True"]
