"""A realm for the pages, and a function that runs commands in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from typer.testing import CliRunner

import penstock
from examples.sparkplug.edge_node import DESCRIPTORS
from penstock_server.cli.program import app
from penstock_server.settings.loading import in_force
from tests.access.certificates import Authority
from tests.docs.pages import Command
from tests.docs.reading import Reader, Run, environment


def write_shop(folder: Path) -> None:
    """Write the files that pages tell their readers to write: message types, and settings of a
    realm."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    label = FieldDescriptorProto.LABEL_OPTIONAL
    order.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING, label=label)
    order.field.add(name="count", number=2, type=FieldDescriptorProto.TYPE_INT32, label=label)
    for name in ("shop.pb", "newer.pb"):
        (folder / name).write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    (folder / "sparkplug.pb").write_bytes(DESCRIPTORS.read_bytes())
    (folder / "realm.toml").write_text("listen.port = 0\nhttp.port = 0\n")
    (folder / "orders.ndjson").write_text('{"sku": "b", "count": 1}\n')


def command_in(environment: Mapping[str, str]) -> Run:
    """Return a function that runs commands in this process and fails if one of them does."""

    def run(command: Command) -> None:
        variables = {**environment, **command.variables}
        result = CliRunner().invoke(app, command.arguments, env=variables)
        assert result.exit_code == 0, f"{command.place}: {command.text}\n{result.output}"

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the files that pages tell their readers to write."""
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path)
    return tmp_path


@pytest.fixture
def reader(here: Path) -> Iterator[Reader]:
    """A reader of pages with a new realm, whose files are in ``data`` in the current directory. If
    a page starts a realm with authentication, the reader continues as its administrator."""
    with contextlib.ExitStack() as open_:
        realm = open_.enter_context(penstock.Realm("data"))
        url = realm.listen()
        variables = environment(url)

        def run(command: Command) -> None:
            command_in(variables)(command)

        def serve(command: Command) -> str:
            if "PENSTOCK_ACCESS_MODE" not in command.variables:
                return ""
            folder = command.arguments[command.arguments.index("--data") + 1]
            guarded = open_.enter_context(penstock.Realm(folder, **QUICK))
            variables.update(
                environment(guarded.listen()),
                PENSTOCK_USER="admin",
                PENSTOCK_PASSWORD=guarded.access.first_password,
            )
            return variables["PENSTOCK_URL"]

        names = {"localhost:9080": realm.listen_http().partition("//")[2]}
        somebody = Reader(url, run, names, serve=serve, mqtt=realm.listen_mqtt)
        open_.callback(somebody.close)
        yield somebody


QUICK: dict[str, Any] = {"access__mode": "mandatory", "access__password_rounds": 4_096}


class Guarded:
    """A realm with authentication and TLS."""

    def __init__(self, realm: penstock.Realm, ca: str) -> None:
        address = realm.listen("127.0.0.1").partition("//")[2].replace("127.0.0.1", "localhost")
        self.names = {"realm.example:9000": address}
        self.url = f"penstocks://admin@{address}?ca={ca}"
        self.environment = {
            **environment(f"penstocks://{address}"),
            "PENSTOCK_URL": self.url,
            "PENSTOCK_PASSWORD": realm.access.first_password,
            "PENSTOCK_NEW_PASSWORD": "correct horse",  # what the user types at the prompts
        }


@pytest.fixture
def guarded_reader(here: Path) -> Iterator[Reader]:
    """A reader of pages who is the administrator of a realm with users, TLS and certificates."""
    authority = Authority(here, "ca")
    for name in ("realm", "alice"):
        authority.certificate(name)
    with penstock.Realm("stopped", **QUICK):
        pass
    with penstock.Realm(
        "data",
        listen__tls_certificate="realm.pem",
        listen__tls_key="realm.key",
        listen__tls_client_ca="ca.pem",
        **QUICK,
    ) as realm:
        place = Guarded(realm, "ca.pem")
        run = command_in(place.environment)
        with closing(Reader(place.url, run, place.names)) as somebody:
            yield somebody


@pytest.fixture
def founder(here: Path) -> Iterator[Reader]:
    """A reader who sets up a realm as a page describes: `penstock serve` starts one in this
    process, with the settings file from the page."""
    with contextlib.ExitStack() as open_:
        place: list[Guarded] = []

        def run(command: Command) -> None:
            command_in(place[0].environment)(command)

        def serve(command: Command) -> str:
            file = command.arguments[command.arguments.index("--settings") + 1]
            overrides = {
                option.option.replace(".", "__"): option.value
                for option in in_force(Path(file).read_text(encoding="utf-8"), file=file)
                if option.origin == "file" and option.option != "listen.host"
            }
            realm = open_.enter_context(penstock.Realm("data", **QUICK | overrides))
            place.append(Guarded(realm, "realm.pem"))
            somebody.names_here(place[0].names)
            return place[0].url

        somebody = Reader("", run, serve=serve)
        open_.callback(somebody.close)
        yield somebody
