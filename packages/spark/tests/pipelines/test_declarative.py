"""The example for ``spark-pipelines run``: our source and sink in Spark Declarative Pipelines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_spark.session.jvm import find_jvm, java_home
from penstock_testing.process import search_path
from tests.java import QUICK_START

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.slow, pytest.mark.process]

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "declarative"
TIMEOUT_S = 900


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example that keeps its things in the test's folder."""
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder)
    definition = folder / "spark-pipeline.yml"
    text = definition.read_text()
    storage = "storage: file:///var/lib/penstock/declarative"
    assert storage in text
    definition.write_text(text.replace(storage, f"storage: file://{tmp_path}/storage"))
    return folder


def test_java_home_is_printed_for_sparks_own_programs() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "penstock_spark.session.jvm"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert printed.stdout == f"{java_home(find_jvm())}\n"


def test_the_example_runs_and_runs_again(project: Path, url: str, client: Session) -> None:
    flights = client.channels.create("flights", type="persistent")
    late = client.channels.create("late", type="persistent")
    flights.publish_many(
        [
            penstock.Event(properties={"carrier": carrier, "flight": flight, "dep_delay": delay})
            for carrier, flight, delay in [("UA", 1545, 2.0), ("UA", 1714, 94.0), ("AA", 11, 82.0)]
        ]
    )
    environment = {
        **os.environ,
        "JDK_JAVA_OPTIONS": QUICK_START,
        "PENSTOCK_URL": url,
        "JAVA_HOME": str(java_home(find_jvm())),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": search_path(),
    }

    lasting = ["--conf", "spark.sql.catalogImplementation=hive"]
    for flight in (12, None):
        done = subprocess.run(
            [Path(sys.executable).with_name("spark-pipelines"), *lasting, "run"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

        assert done.returncode == 0, done.stdout + done.stderr
        if flight is not None:
            more = {"carrier": "AA", "flight": flight, "dep_delay": 90.0}
            flights.publish(b"", properties=more)

    assert late.read().column("flight").to_pylist() == [1714, 11, 12]
    carriers = pq.read_table(project / "spark-warehouse" / "carriers").to_pylist()
    assert {row["carrier"]: row["flights"] for row in carriers} == {"UA": 2, "AA": 2}
