"""Requests that a process of Spark sends once, and repeatedly."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

import penstock
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_spark.connections import check_exists, disconnect
from penstock_spark.options import Where
from penstock_spark.source import PenstockSource


@pytest.mark.slow
def test_a_channel_that_was_there_is_not_asked_for_again(url: str, client: Session) -> None:
    where = Where(url, "orders")
    with pytest.raises(NameDoesNotExist, match="no channel 'orders'; create it first"):
        check_exists(where)
    client.channels.create("orders")

    check_exists(where)
    client.channels.delete("orders")

    check_exists(where)
    disconnect()
    with pytest.raises(NameDoesNotExist, match="no channel 'orders'"):
        check_exists(where)


@pytest.mark.slow
def test_a_process_without_a_session_waits_for_the_realm_of_a_running_query(
    tmp_path: Path,
) -> None:
    """Spark may make the source of a stream, and the writer of a micro-batch, in a new process."""
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        session.channels.create("orders", type="persistent").publish(b"", properties={"n": 1})
    schema = StructType().add("n", LongType())
    more = {"txnAppId": "a", "txnVersion": "1"}

    def read(source: PenstockSource) -> None:
        reader = source.streamReader(schema)
        assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    questions: list[tuple[Callable[[PenstockSource], object], dict[str, str]]] = [
        (read, {}),
        (lambda source: source.streamWriter(schema, overwrite=False), {}),
        (lambda source: source.writer(schema, overwrite=False), more),
    ]
    for question, options in questions:
        refusing = socket.create_server(("127.0.0.1", 0))
        port = refusing.getsockname()[1]
        realms = ThreadPoolExecutor().submit(_realm_after_a_refusal, refusing, tmp_path / "realm")
        url = f"penstock://127.0.0.1:{port}"

        question(PenstockSource({"url": url, "channel": "orders", **options}))

        disconnect()
        realms.result().__exit__(None, None, None)


def _realm_after_a_refusal(refusing: socket.socket, directory: Path) -> penstock.Realm:
    """The realm comes where a client was refused."""
    port = refusing.getsockname()[1]
    connected, _ = refusing.accept()
    refusing.close()
    connected.close()
    realm = penstock.Realm(directory)
    realm.__enter__()
    realm.listen(port=port)
    return realm
