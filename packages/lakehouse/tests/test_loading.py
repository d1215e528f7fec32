"""Parquet and Avro are loaded with the first table, not with the first page of the console."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import urllib.request

import penstock

def loaded():
    return {"fastavro", "pyarrow.parquet"} & sys.modules.keys()

with penstock.Realm() as realm, realm.connect() as session:
    url = realm.listen_http()
    for path in ("/", "/api/v1/mqtt", "/api/v1/iceberg/v1/namespaces"):
        urllib.request.urlopen(url + path).read()
        assert not loaded(), (path, loaded())
    session.channels.create("orders").publish(b"x")
    urllib.request.urlopen(url + "/api/v1/iceberg/v1/namespaces/channels/tables/orders").read()
    assert loaded() == {"fastavro", "pyarrow.parquet"}
"""


@pytest.mark.process
def test_only_a_table_loads_parquet_and_avro() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
