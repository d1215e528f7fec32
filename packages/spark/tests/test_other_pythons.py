"""The format is found whatever Python the environment names for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

import penstock

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.process, pytest.mark.slow]

OURS = """
from penstock_spark.session.session import session
spark = session("other", "local[1]")
"""
SPARKS = """
from pyspark.sql import SparkSession
from penstock_spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
"""
USE = """
there = spark.read.format("penstock").option("url", URL).option("channel", "orders").load()
print("found", there.where("price > 1").count())
there.select("price").write.format("penstock").option("url", URL).mode("append").save("copies")
"""


@pytest.mark.parametrize("started", [OURS, SPARKS], ids=["session", "register"])
def test_the_python_in_the_environment_need_not_have_the_package(started: str) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders, copies = session.channels.create("orders"), session.channels.create("copies")
        orders.publish_many([penstock.Event(properties={"price": n}) for n in range(5)])
        program = f"URL = {realm.listen()!r}\n" + textwrap.dedent(started) + textwrap.dedent(USE)

        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYSPARK_PYTHON": "/bin/false", "PYSPARK_DRIVER_PYTHON": ""},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

        assert done.returncode == 0, done.stderr[-3_000:]
        assert "found 3" in done.stdout
        assert copies.info().last_event_id == 4
