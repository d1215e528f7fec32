"""A pipeline whose Spark is a Connect server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Event
from penstock.client.sync.sync import Session
from penstock_testing.ports import free_port

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.slow]

SERVER = """
import sys
from penstock_spark.session.session import session

session(
    "connect",
    "local[2]",
    **{
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": sys.argv[1],
        "spark.driver.memory": "1g",
    },
)
print("listening", flush=True)
sys.stdin.read()
"""
TOKEN = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "a token"}
TIMEOUT_S = 300
PIPELINE = """
name = "small"
[[source]]
name = "numbers"
channel = "numbers"
starting = "earliest"
[[step]]
name = "copy"
sql = "SELECT n FROM numbers WHERE n > 1"
channel = "copies"
"""


@pytest.fixture
def server() -> Iterator[str]:
    """The URL of a Connect server in a separate process."""
    port = free_port()
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | TOKEN,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield f"sc://localhost:{port}"
        process.stdin.close()


def test_a_step_with_one_channel_runs_over_connect(
    server: str, client: Session, url: str, tmp_path: Path
) -> None:
    numbers = client.channels.create("numbers", type="persistent")
    copies = client.channels.create("copies", type="persistent")
    numbers.publish_many([Event(properties={"n": n}) for n in range(4)])
    (tmp_path / "small.toml").write_text(PIPELINE)

    command = ["pipeline", "run", "small.toml", "--once", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command, "--master", server, "--url", url],
        cwd=tmp_path,
        env=os.environ | TOKEN,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    [step] = json.loads(done.stdout)["steps"]
    assert (step["rows"], step["rows_out"]) == (4, 2)
    assert sorted(event.properties["n"] for event in copies.browse()) == [2, 3]
