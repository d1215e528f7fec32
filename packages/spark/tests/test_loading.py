"""The imports of Spark's processes: each process starts fresh, most of them in sequence."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def loaded_by(program: str) -> set[str]:
    """The modules a new process has after the program."""
    shown = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_looking_for_formats_loads_nothing_of_the_client() -> None:
    """Spark imports every package of this kind, whatever the query reads."""
    loaded = loaded_by("from pyspark_penstock import DefaultSource")

    assert "penstock_spark.source" in loaded
    assert not loaded & {"pyarrow", "numpy", "pandas", "msgspec", "asyncio", "importlib.metadata"}
    ours = {name for name in loaded if name.startswith("penstock")}
    assert ours == {
        "penstock_core",
        "penstock_core.vocabulary",
        "penstock_spark",
        "penstock_spark.errors",
        "penstock_spark.errors.errors",
        "penstock_spark.session",
        "penstock_spark.session.settling",
        "penstock_spark.source",
        *(name for name in ours if name.startswith("penstock_core.vocabulary.errors")),
    }


@pytest.mark.parametrize("work", ["reading", "writing"])
def test_a_process_that_reads_or_writes_leaves_out_what_neither_needs(work: str) -> None:
    loaded = loaded_by(f"import penstock_spark.{work}.{work}")

    assert "penstock.client.sync.sync" in loaded
    assert not loaded & {
        "pandas",
        "importlib.metadata",
        "pyarrow.compute",
        "penstock.client.copies.backup",
        "penstock.client.reading.key_state",
        "penstock.client.copies.transfer",
        "penstock_core.columns.files.exports",
        "penstock_core.columns.selectors",
        "penstock_core.channel.apply",
        "penstock_core.channel.state",
        "penstock_spark.writing.writing" if work == "reading" else "penstock_spark.reading.reading",
    }


def test_rows_of_a_channel_without_data_do_not_bring_pandas() -> None:
    loaded = loaded_by(
        """
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_spark.columns.projection import Projection, arrow_schema, spark_schema
batch = stamp(body_of([Event(properties={"n": 1}), Event(properties={"n": 2})]), Span(0, 2), 5)
wanted = arrow_schema(spark_schema([batch.schema]))
rows = Projection(batch.schema, wanted).project(batch)
assert "data" not in batch.schema.names, "it has to be made"
rows.column("data").validate(full=True)
assert not rows.column("data").null_count, "an event without data has empty data"
"""
    )

    assert "pyarrow" in loaded
    assert "pandas" not in loaded


def test_what_pyspark_loads_for_its_first_call_is_loaded_while_the_jvm_starts() -> None:
    program = """
import sys, threading
import pyspark.core.context as context
from penstock_spark.session.session import session

class Started(Exception):
    pass

def launch_gateway(*_, **__):
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    raise Started

context.launch_gateway = launch_gateway
try:
    session("never", "local[1]")
except Started:
    pass
"""
    assert "pyspark.testing.utils" in loaded_by(program)
