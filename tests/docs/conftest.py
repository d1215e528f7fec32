"""A realm for the pages, and commands run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from typer.testing import CliRunner

import penstock
from penstock.cli.program import app
from tests.docs.pages import Command
from tests.docs.reading import Reader, environment


def write_shop(folder: Path) -> None:
    """The files that pages have their readers make: about messages, and a realm's settings."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    label = FieldDescriptorProto.LABEL_OPTIONAL
    order.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING, label=label)
    order.field.add(name="count", number=2, type=FieldDescriptorProto.TYPE_INT32, label=label)
    for name in ("shop.pb", "newer.pb"):
        (folder / name).write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    (folder / "realm.toml").write_text("listen.port = 0\nhttp.port = 0\n")
    (folder / "orders.ndjson").write_text('{"sku": "b", "count": 1}\n')


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a realm listens that keeps its files in ``data``, below the current directory."""
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path)
    with penstock.Realm("data") as realm:
        yield realm.listen()


@pytest.fixture
def reader(url: str) -> Iterator[Reader]:
    """Somebody who follows pages against a realm of their own."""

    def run(command: Command) -> None:
        result = CliRunner().invoke(app, command.arguments, env=environment(url))
        assert result.exit_code == 0, f"{command.place}: {command.text}\n{result.output}"

    with closing(Reader(url, run)) as somebody:
        yield somebody
