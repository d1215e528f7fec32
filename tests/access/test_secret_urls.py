"""A password or key in a URL is in no error, list, log line or representation, wherever a URL comes
from outside."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.client.connection.credentials import Credentials
from penstock.client.connection.urls import parse_url
from penstock.client.reading.archive import Archive, unreachable
from penstock.tables.disk import filesystem_of, local_path
from penstock.tables.table import Table
from penstock_cluster.bootstrap.cluster import EngineWithFiles, open_engine, server_urls
from penstock_core.vocabulary.errors import Unavailable
from penstock_server.cli.program import app
from penstock_server.runtime.access.tokens import TokenRules, Tokens, fetched
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import ClusterSettings, Settings
from penstock_server.settings.loading import in_force
from penstock_spark.options import sink_options, source_options
from penstock_spark.pipelines.definition import load
from penstock_testing.engine import MemoryEngine
from tests.access.realms import QUICK

SECRETS = ("QZhush", "QZ/hush", "QZ%2Fhush", "QZ?hush", "QZ:hush", "QZ@hush", "QZ#hush")
"""No part of these may be seen; each is misread in another way where it is not written as %xx."""

Place = Callable[[str], object]
"""Returns a shown text, or raises a shown error, for a URL with this secret."""


def opened(urls: str, monitors: str) -> object:
    settings = ClusterSettings(engine=urls, monitors=monitors)
    return asyncio.run(open_engine(settings, SystemClock()))


def open_connection(servers: list[str]) -> object:
    from penstock_cluster.storage.jetstream.connection import NatsConnection

    async def nothing() -> None:
        return None

    return asyncio.run(NatsConnection.open(servers, nothing, timeout_s=0.1))


def complaint(url: str) -> str:
    from penstock_cluster.storage.postgres.servers import Servers

    return Servers(server_urls(url)).complaint()


def command(*words: str) -> str:
    return CliRunner().invoke(app, words, env={"PENSTOCK_URL": ""}).output


def tokens(keys: str) -> Tokens:
    rules = TokenRules(keys=keys, issuer="https://sso.example", audience="realm")
    return Tokens(rules, fetched, SystemClock(), offload=asyncio.to_thread)


def noted(uri: str) -> object:
    raise unreachable(uri, "orders", Unavailable("it does not answer"))


PLACES: dict[str, Place] = {
    "nobody answers": lambda s: penstock.connect(
        f"penstock://alice:{s}@localhost:1", reconnect_timeout=0
    ),
    "no URL of a realm": lambda s: penstock.connect(f"http://alice:{s}@localhost:1"),
    "a port that is none": lambda s: penstock.connect(f"penstocks://alice:{s}@localhost:port"),
    "parsed URL": lambda s: repr(parse_url(f"penstock://alice:{s}@localhost:1")),
    "credentials": lambda s: repr(Credentials(parse_url(f"penstock://alice:{s}@h"), None, {})),
    "command": lambda s: command("channel", "list", "--url", f"penstock://alice:{s}@localhost:x"),
    "another command": lambda s: command("info", "--url", f"http://alice:{s}@localhost"),
    "copy of a store": lambda s: command("store", "copy", "x", "--to", f"s3:/k:{s}@bucket"),
    "source": lambda s: repr(
        source_options({"url": f"penstock://alice:{s}@h", "channel": "orders"})
    ),
    "sink": lambda s: repr(sink_options({"url": f"penstock://alice:{s}@h", "channel": "orders"})),
    "copied files": lambda s: repr(
        source_options(
            {"url": "penstock://h", "channel": "orders", "files": f"s3://k:{s}@bucket/copy"}
        )
    ),
    "archive": lambda s: Archive.open(f"ftp://k:{s}@bucket/lake", "orders"),
    "archive that is not there": lambda s: noted(f"s3://k:{s}@bucket/lake"),
    "table": lambda s: Table.found(f"ftp://k:{s}@bucket/lake"),
    "file system": lambda s: filesystem_of(f"ftp://k:{s}@bucket/lake"),
    "parameters of a file system": lambda s: filesystem_of(f"s3://bucket/p?secret_key={s}&wrong=1"),
    "local folder": lambda s: local_path(f"s3://k:{s}@bucket/lake"),
    "NATS with a wrong port": lambda s: server_urls(f"nats://u:{s}@a:1,b:port"),
    "NATS without a host": lambda s: server_urls(f"nats://u:{s}@"),
    "PostgreSQL without a host": lambda s: server_urls(f"postgresql://u:{s}@:5432/db"),
    "PostgreSQL with a forgotten host": lambda s: server_urls(
        f"postgresql://u:{s.replace('@', '')}"
    ),
    "no engine": lambda s: server_urls(f"mysql://u:{s}@a/db"),
    "monitors": lambda s: opened("nats://a:1", monitors=f"http://u:{s}@a:8222"),
    "monitors of another kind": lambda s: opened("nats://a:1", monitors=f"ftp://u:{s}@a:8222"),
    "blobs of a cluster": lambda s: EngineWithFiles(MemoryEngine(), f"ftp://k:{s}@h/b", "main"),
    "settings": lambda s: repr(
        Settings(
            cluster=ClusterSettings(engine=f"nats://u:{s}@a:1", blobs=f"s3://b/p?secret_key={s}")
        )
    ),
    "keys with a password": lambda s: tokens(f"https://me:{s}@sso.example/keys"),
    "keys over http": lambda s: tokens(f"http://sso.example/keys?key={s}"),
    "keys that cannot be read": lambda s: fetched(f"https://localhost:1/keys?key={s}"),
    "keys with a wrong port": lambda s: fetched(f"https://localhost:port/keys?key={s}"),
}
if find_spec("nats") is not None:
    PLACES["NATS that does not answer"] = lambda s: open_connection(
        server_urls(f"nats://u:{s}@127.0.0.1:1")
    )
if find_spec("asyncpg") is not None:
    PLACES["PostgreSQL that does not answer"] = lambda s: complaint(f"postgresql://u:{s}@a:1/db")

SETTINGS = {
    "cluster.engine": "nats://u:{}@a:1,b:2",
    "cluster.blobs": "s3://k:{}@bucket/blobs",
    "cluster.monitors": "http://u:{}@a:8222",
    "access.token_keys": "https://me:{}@sso.example/keys",
}


def shown(place: Place, secret: str) -> str:
    """Return the text of an error for people and logs, including its traceback."""
    try:
        return str(place(secret))
    except (penstock.PenstockError, OSError, ValueError) as error:
        return "".join(traceback.format_exception(error))


def is_told(text: str) -> bool:
    return "QZ" in text or "hush" in text


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_a_url_is_not_shown(place: str, secret: str) -> None:
    text = shown(PLACES[place], secret)

    assert text, "something is said"
    assert not is_told(text)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("option", SETTINGS)
def test_a_secret_in_a_setting_is_not_listed(option: str, secret: str) -> None:
    settings = in_force(overrides={option: SETTINGS[option].format(secret)})

    (value,) = [setting.value for setting in settings if setting.option == option]
    assert "***" in value
    assert not is_told(value)


@pytest.mark.parametrize("style", ["table", "json"])
def test_messages_about_a_realm_show_its_url_without_the_password(style: str) -> None:
    with penstock.Realm(**QUICK) as realm:
        url = realm.listen().replace("://", "://alice:QZhush@")

        text = command("info", "--url", url, "--format", style)

    assert "alice" in text
    assert not is_told(text)


def test_a_pipeline_is_shown_without_the_password_of_its_realm(tmp_path: Path) -> None:
    file = tmp_path / "flights.toml"
    file.write_text(
        'name = "flights"\nurl = "penstock://alice:QZhush@h"\n'
        '[[source]]\nname = "orders"\nchannel = "orders"\n'
        '[[step]]\nname = "all"\nsql = "SELECT * FROM orders"\nchannel = "copies"\n'
    )

    assert not is_told(repr(load(file)))
    assert "alice" in repr(load(file))


def test_a_proxy_is_shown_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://u:QZhush@127.0.0.1:1")

    assert not is_told(shown(fetched, "https://sso.example/keys"))
