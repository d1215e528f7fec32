"""Which engine a cluster is on, and what is said of settings that name none."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_cluster.bootstrap.cluster import (
    EngineWithFiles,
    advertised_host,
    check_engine,
    check_names,
    ensure_identity,
    files_at,
    member,
    open_engine,
    server_urls,
    shared_settings,
)
from penstock_cluster.owning.agreement import differing
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.serving import serve
from penstock_server.settings import ClusterSettings, LdapSettings, Settings
from penstock_server.settings.loading import in_force, load
from penstock_testing.engine import EngineServers, MemoryEngine
from tests.docs.pages import ROOT
from tests.loops import on_a_loop


@pytest.mark.parametrize(
    ("engine", "urls"),
    [
        ("nats://a:1,b:2,c:3", ["nats://a:1", "nats://b:2", "nats://c:3"]),
        ("nats://a:1,nats://b:2", ["nats://a:1", "nats://b:2"]),
        ("nats://u:p@a,b", ["nats://u:p@a", "nats://u:p@b"]),
        ("tls://[::1]:4222, b", ["tls://[::1]:4222", "tls://b"]),
        (
            "postgresql://u:p@a:1,b:2/db?sslmode=require",
            ["postgresql://u:p@a:1/db?sslmode=require", "postgresql://u:p@b:2/db?sslmode=require"],
        ),
    ],
)
def test_a_url_names_all_servers_of_an_engine(engine: str, urls: list[str]) -> None:
    assert server_urls(engine) == urls


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ("redis://a:1", "cluster.engine is 'redis://a:1'; the URL of an engine looks like nats://"),
        ("a:1,b:2", "the URL of an engine looks like"),
        ("nats://", "'' in it is not the address"),
        ("nats://a:1,,c:3", "'' in it is not the address"),
        ("nats://a:port", r"'a:\*\*\*' in it is not the address"),
        ("postgresql://u:secret@:5432/db", r"'postgresql://u:\*\*\*@:5432/db', and ':5432' in it"),
    ],
)
def test_a_url_of_no_engine_is_refused_with_what_is_right(engine: str, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named) as refused:
        server_urls(engine)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("cluster.lease_s", 1, r"cluster\.lease_s must be at least 2\.0"),
        ("cluster.lease_s", 61, r"cluster\.lease_s must be at most 60\.0"),
        ("cluster.lease", 6, "did you mean cluster.lease_s"),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(path: str, value: object, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        load(overrides={path: value})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (ClusterSettings(name="Upper"), r"cluster\.name is 'Upper'; allowed are 1 to 40 lower"),
        (ClusterSettings(name=""), r"cluster\.name is ''"),
        (ClusterSettings(node="a/b"), r"cluster\.node \(--node\) is 'a/b'; allowed are 1 to 40"),
    ],
)
def test_a_name_that_an_engine_may_not_take_is_refused(
    settings: ClusterSettings, named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        check_names(settings)

    check_names(ClusterSettings(name="orders-2", node="n1.example"))


def test_settings_of_a_cluster_without_an_engine_are_refused(tmp_path: Path) -> None:
    settings = load(overrides={"cluster.node": "n1"})

    with pytest.raises(InvalidArgument, match=r"cluster\.node is set, but cluster\.engine is not"):
        serve(tmp_path / "data", settings)

    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cluster.monitors": "a:8222"}, "cluster.monitors has 'a:8222'"),
        (
            {"cluster.blobs": "elsewhere"},
            "cluster.blobs is 'elsewhere'; it must be 'engine', or a URI",
        ),
    ],
)
@on_a_loop
async def test_a_bad_place_is_refused_before_or_with_the_engine(
    settings: dict[str, str], named: str
) -> None:
    wanted = load(overrides={"cluster.engine": "postgresql://a", **settings}).cluster
    if "cluster.monitors" in settings:
        wanted = load(overrides={"cluster.engine": "nats://a", **settings}).cluster

    with pytest.raises(InvalidArgument, match=named):
        await open_engine(wanted, SystemClock())


def test_the_password_of_an_engine_is_not_shown() -> None:
    shown = in_force(overrides={"cluster.engine": "postgresql://u:secret@a:1,b:2/db?password=x"})

    (engine,) = [option for option in shown if option.option == "cluster.engine"]
    assert engine.value == "postgresql://***@a:1,b:2/db?***"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.partition(".")[0] == "nats"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [
        module for module in sys.modules if module.startswith("penstock_cluster.storage.jetstream")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats", None)

    with pytest.raises(InvalidArgument, match=r"pip install 'penstock-realm\[cluster\]'"):
        asyncio.run(open_engine(ClusterSettings(engine="nats://a"), SystemClock()))


@pytest.mark.process
@pytest.mark.slow
def test_a_realm_on_its_own_loads_nothing_of_a_cluster(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "import penstock_server.cli, penstock_server.serving as serving\n"
        "from penstock_server.settings.loading import load\n"
        "stopped = asyncio.Event()\n"
        "stopped.set()\n"
        f"settings = load(overrides={{'listen.port': 0, 'http.port': 0}})\n"
        f"asyncio.run(serving._serve_alone(Path({str(tmp_path / 'data')!r}), settings, stopped))\n"
        "loaded = [name for name in sys.modules if name.split('.')[0] in ('nats', 'asyncpg')]\n"
        "loaded += [name for name in sys.modules if name.split('.')[0] == 'penstock_cluster']\n"
        "loaded += [name for name in sys.modules if name.endswith('.native.standby')]\n"
        "print(loaded)\n"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("overrides", "host"),
    [
        ({"listen.host": "10.0.0.1"}, "10.0.0.1"),
        ({"listen.host": "0.0.0.0", "cluster.advertise": "n1.example"}, "n1.example"),
        ({"cluster.advertise": "[fd00::1]"}, "fd00::1"),
    ],
)
def test_a_node_is_reached_under_its_own_host_or_the_one_it_names(
    overrides: dict[str, str], host: str
) -> None:
    assert advertised_host(load(overrides=overrides)) == host


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"listen.host": "0.0.0.0"}, r"cluster.advertise \(--advertise\) has to name"),
        ({"cluster.advertise": "::"}, "cluster.advertise"),
        ({"cluster.advertise": "n1:9000"}, "it must be a name or an address, without a port"),
        ({"cluster.advertise": "http://n1"}, "it must be a name or an address, without a port"),
    ],
)
def test_an_address_that_nobody_reaches_is_refused(overrides: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        advertised_host(load(overrides=overrides))


def test_a_node_shows_the_urls_of_its_front_ends() -> None:
    addresses = {"listen.host": "::1", "listen.port": 9_001, "http.port": 9_081}

    plain = member("n1", "nonce", load(overrides=addresses), secret=b"s" * 32)
    safe = member(
        "n1",
        "nonce",
        load(
            overrides={
                **addresses,
                "listen.tls_certificate": "c.pem",
                "listen.amqp_port": 5_671,
                "http.enabled": False,
            }
        ),
        secret=b"t" * 32,
    )

    assert plain.secret_name != safe.secret_name
    assert plain.address == "::1:9001"
    assert plain.serves == {"native": "penstock://[::1]:9001", "http": "http://[::1]:9081"}
    assert safe.serves == {"native": "penstocks://[::1]:9001", "amqp": "amqps://[::1]:5671"}


@pytest.mark.spec("N3")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("access.mode", "mandatory"),
        ("limits.max_event_bytes", 1_000_000),
        ("cluster.lease_s", 30.0),
        ("cluster.blobs", "file:///mnt/other"),
        ("listen.mqtt_channel", "topics"),
        ("name", "other"),
    ],
)
def test_a_node_shows_the_settings_that_must_agree(name: str, value: object) -> None:
    usual = {"listen.host": "10.0.0.1"}
    one = member("n1", "nonce", load(overrides=usual), secret=b"s" * 32)
    other_member = member("n2", "nonce", load(overrides={**usual, name: value}), secret=b"s" * 32)

    assert differing(one.settings, other_member.settings) == [name]


def test_the_settings_that_must_agree_are_those_of_the_guide() -> None:
    page = (ROOT / "docs" / "guide" / "cluster.md").read_text(encoding="utf-8")
    text = page.partition("### Settings that must agree\n\n")[2].partition("\n")[0]
    shown = set(shared_settings(Settings()))
    sections = set(re.findall(r"`\[(\w+)\]`", text))
    named = set(re.findall(r"`(\w+(?:\.\w+)?)`", text))

    assert sections == {"access", "limits"}
    leases = {name for name in shown if name.startswith("http.lease")}
    rest = {name for name in shown if name.partition(".")[0] not in sections} - leases
    assert named == rest | {"audit_files", "http.leases_max"}
    assert "access.audit_files" not in shown
    for section in sections:
        fields = {f"{section}.{name}" for name in getattr(Settings(), section).__struct_fields__}
        assert fields - shown <= {"access.audit_files", "access.ldap"}
    assert {f"access.ldap.{name}" for name in LdapSettings.__struct_fields__} <= shown


@on_a_loop
async def test_blobs_may_lie_on_a_file_system_that_the_nodes_share(tmp_path: Path) -> None:
    engine = EngineWithFiles(MemoryEngine(), f"file://{tmp_path}", "orders")

    blobs = await engine.blobs(0)
    await blobs.put("segments/1.arrow", [b"abc"])

    assert not blobs.grows
    assert (tmp_path / "orders" / "shard-0" / "segments" / "1.arrow").read_bytes() == b"abc"
    assert (await engine.health()).kind == "memory"


@on_a_loop
async def test_the_first_identity_of_a_realm_stays() -> None:
    registry = await MemoryEngine(EngineServers()).registry()

    assert await ensure_identity(registry, "one") == "one"
    assert await ensure_identity(registry, "two") == "one"


@on_a_loop
async def test_an_engine_that_does_not_answer_at_the_start_is_not_waited_for_without_end() -> None:
    class Silent(MemoryEngine):
        async def check(self, shard: int) -> None:
            await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="start a majority of its servers first"):
        await check_engine(Silent(), 0, timeout_s=0.0)


def test_a_cluster_has_the_settings_of_its_nodes_by_name() -> None:
    assert Settings().cluster == ClusterSettings()
    assert load("[cluster]\nengine = 'nats://a'\nlease_s = 2").cluster.lease_s == 2


@pytest.mark.parametrize(
    ("blobs", "public_uri"),
    [
        ("engine", ""),
        ("file:///shared/penstock", "file:///shared/penstock/orders/shard-0"),
        ("s3://KEY:SECRET@bucket/p?region=eu", "s3://bucket/p/orders/shard-0?region=eu"),
    ],
)
def test_others_are_told_where_the_files_are_without_the_keys(blobs: str, public_uri: str) -> None:
    assert files_at(ClusterSettings(name="orders", blobs=blobs)) == public_uri
