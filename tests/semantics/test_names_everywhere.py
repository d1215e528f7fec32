"""A name goes through every way in and out of a realm and stays itself (SEM C2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import penstock
from packages.client.tests.patience import eventually
from packages.server.tests.frontends.http.asking import Web
from penstock_amqp.addresses import parse_address
from penstock_core.columns.files.segments import segment_folder, segment_name
from penstock_core.vocabulary.choice import choice_of, fits
from penstock_core.vocabulary.names import NAME_LENGTH_MAX, escaped, unescaped
from penstock_server.cli.program import app
from penstock_server.runtime.access.accounts import checked_resource
from penstock_server.storage.blob_names import check_blob_name
from tests.named import NAMES, TRICKY
from tests.thorough import examples

pytestmark = pytest.mark.spec("C2")


class Everywhere:
    """One realm, asked in all the ways there are."""

    def __init__(self, realm: penstock.Realm, session: penstock.Session) -> None:
        self.session = session
        self._web = Web(realm.listen_http())
        self._cli = CliRunner()
        self._environment = {"PENSTOCK_URL": realm.listen()}

    def http(self, name: str) -> str:
        return str(self._web.send("GET", f"channels/{escaped(name)}")["name"])

    def labels(self) -> set[str]:
        """Labels of the channels in the metrics."""
        text = self._web.ask("GET", "/metrics").data.decode()
        return {
            sample.labels["name"]
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("kind") == "channel"
        }

    def command(self, *arguments: str) -> str:
        done = self._cli.invoke(app, list(arguments), env=self._environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    def command_line(self, name: str) -> str:
        shown = self.command("channel", "show", "--format", "json", "--", name)
        return str(msgspec.json.decode(shown)["name"])


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Everywhere]:
    with penstock.Realm() as realm, realm.connect() as session:
        yield Everywhere(realm, session)


@pytest.mark.slow
@given(NAMES)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_name_comes_out_of_every_way_as_it_went_in(everywhere: Everywhere, name: str) -> None:
    channels = everywhere.session.channels
    made = channels.create(name)
    try:
        made.publish(b"here")
        assert made.name == name
        assert channels.list() == [name]
        assert channels.get(name).name == name
        assert everywhere.http(name) == name
        assert everywhere.labels() == {name}
        assert everywhere.command_line(name) == name
        listed = everywhere.command("channel", "list", "--format", "json")
        assert [document["name"] for document in msgspec.json.decode(listed)] == [name]
    finally:
        channels.delete(name)
    assert everywhere.labels() == set()


@pytest.mark.slow
@given(NAMES)
@settings(max_examples=examples(400))
def test_any_name_is_told_in_addresses_lists_patterns_and_files(name: str) -> None:
    assert parse_address(name, None) == (name, None)
    assert parse_address(f"topic://{name}", None) == (name, "channel")
    assert parse_address(f"queue://{name}", None) == (name, "queue")

    assert choice_of(f"orders, {escaped(name)}").names == tuple(sorted({"orders", name}))
    assert choice_of(choice_of(escaped(name)).text).names == (name,)
    if len(name) < NAME_LENGTH_MAX:
        assert choice_of(f"{escaped(name)}*").takes(f"{name}x")
    assert fits(f"{name}/below", f"{escaped(name)}/*")

    assert checked_resource("channel", name) == name
    assert checked_resource("queue", f"{name}/*") == f"{name}/*"

    file = segment_name(segment_folder(name, 7), 0, 50_000)
    check_blob_name(file)
    assert max(map(len, file.split("/"))) < 256
    if "~~" not in file:
        assert unescaped(file.split("/")[1], "~") == f"{name}.7"


@pytest.mark.slow
def test_names_outlive_the_realm_with_their_files(tmp_path: Path) -> None:
    data, names = tmp_path / "data", TRICKY[4::2]
    with penstock.Realm(data) as realm, realm.connect() as session:
        for name in names:
            made = session.channels.create(
                name, type="persistent", storage={"events_per_spindle": 2}
            )
            made.publish_many([penstock.Event(name.encode()) for _ in range(5)])
            session.channels.export(name, tmp_path / "exports" / str(names.index(name)))
        wanted = {segment_folder(name, number) for number, name in enumerate(names, 1)}
        eventually(lambda: _folders(data) == wanted)
    with penstock.Realm(data) as realm, realm.connect() as session:
        assert session.channels.list() == sorted(names)
        for name in names:
            channel = session.channels.get(name)
            assert [event.data.decode() for event in channel.browse()] == [name] * 5
            session.channels.delete(name)
            imported = session.channels.import_from(tmp_path / "exports" / str(names.index(name)))
            assert imported.name == name
            assert [event.event_id for event in imported.browse()] == [0, 1, 2, 3, 4]
    assert len(_folders(data)) == len(names)


def _folders(data: Path) -> set[str]:
    """The channels' folders; no channel lies in another's."""
    folders = {path.parent.relative_to(data / "segments") for path in data.rglob("*.arrow")}
    assert all(len(folder.parts) == 1 for folder in folders)
    return set(map(str, folders))


@pytest.mark.slow
def test_a_store_lies_beside_a_folder_of_its_name(everywhere: Everywhere) -> None:
    session = everywhere.session
    flights = session.channels.create("flights")
    delays = session.channels.create("flights/delays")
    rest = session.queues.create("flights/delays/rest")
    flights.publish(b"flight")
    delays.publish(b"delay")
    rest.push(b"rest")

    assert session.channels.list() == ["flights", "flights/delays"]
    assert everywhere.http("flights/delays") == "flights/delays"
    assert everywhere.command("browse", "flights", "--format", "json").count("flight") == 1
    assert [event.data for event in delays.browse()] == [b"delay"]
    assert rest.pop(0) is not None
    session.channels.delete("flights")
    assert session.channels.list() == ["flights/delays"]
    session.channels.delete("flights/delays")
    session.queues.delete("flights/delays/rest")
