"""``penstock doctor --bundle``: what the archive has, that it has no secrets, and how it is
written."""

from __future__ import annotations

import json
import os
import resource
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock_core.api.realm import ChannelRates, DurableRates, RatesNow
from penstock_core.vocabulary.counters import Counters
from penstock_server.cli.checks import bundle, bundle_parts, bundle_texts
from penstock_server.cli.checks.bundle_parts import Sources
from penstock_server.cli.checks.checks import Check
from penstock_server.cli.program import app
from tests.access.certificates import Authority

PORTS = "[listen]\nport = 0\n[http]\nport = 0\n"


def doctor(target: Path, *arguments: str | Path) -> Result:
    words = ["doctor", "--bundle", target, *arguments]
    return CliRunner().invoke(app, [str(word) for word in words])


def files_in(target: Path) -> dict[str, bytes]:
    """The files of an archive, by their names below its only folder."""
    files = {}
    with tarfile.open(target) as tar:
        for entry in tar.getmembers():
            file = tar.extractfile(entry)
            assert file is not None
            folder, name = entry.name.split("/")
            assert (entry.mode, folder) == (0o600, "penstock-support")
            files[name] = file.read()
    return files


def missing(files: dict[str, bytes]) -> dict[str, str]:
    """Why parts are not in the archive."""
    parts = json.loads(files["manifest.json"])["parts"]
    return {part["name"]: part["missing"] for part in parts if "missing" in part}


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "realm.toml"
    file.write_text(PORTS)
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a stopped realm."""
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        orders.durables.create("billing", type="shared")
        orders.publish_many([penstock.Event(b"x") for _ in range(7)])
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "support.tar.gz"


def test_a_stopped_realm_is_counted_and_not_changed(
    data: Path, settings: Path, target: Path
) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    result = doctor(target, "--data", data, "--settings", settings)

    files = files_in(target)
    (channel,) = json.loads(files["statistics.json"])["channels"]
    (durable,) = json.loads(files["statistics.json"])["durables"]
    assert result.exit_code == 0
    assert (channel["name"], channel["events"]) == ("orders", 7)
    assert channel["counters"]["published"] == 7
    assert (durable["channel"], durable["durable"], durable["outstanding"]) == ("orders", 1, 7)
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path for path in before if before[path] != after[path]} <= {data / "LOCK"}
    assert before.keys() == after.keys()


def test_the_manifest_lists_every_part_and_what_it_leaves_out(
    data: Path, settings: Path, target: Path
) -> None:
    doctor(target, "--data", data, "--settings", settings)
    files = files_in(target)
    manifest = json.loads(files["manifest.json"])

    assert [part["name"] for part in manifest["parts"]] == list(bundle.PARTS)
    assert all(part["leaves_out"] for part in manifest["parts"])
    assert missing(files).keys() == bundle.PARTS.keys() - files.keys()
    assert missing(files)["lines.ndjson"] == "needs --log"
    for part in manifest["parts"]:
        assert part.get("bytes") == (len(files[part["name"]]) if part["name"] in files else None)
    assert manifest["version"] == penstock.__version__
    assert {"penstock-core", "msgspec"} <= json.loads(files["packages.json"]).keys()
    assert "pytest" not in json.loads(files["packages.json"])


def test_a_running_realm_answers_through_a_session(tmp_path: Path, target: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        orders.durables.create("billing", type="shared")
        orders.publish(b"x")
        session.queues.create("work")
        port, web = (url.rpartition(":")[2] for url in (realm.listen(), realm.listen_http()))
        file = tmp_path / "realm.toml"
        file.write_text(f"[listen]\nport = {port}\n[http]\nport = {web}\n")
        result = doctor(target, "--data", tmp_path / "data", "--settings", file)

    files = files_in(target)
    assert result.exit_code == 0
    assert json.loads(files["realm.json"])["channels"] == 1
    statistics = json.loads(files["statistics.json"])
    assert [(row["name"], row["kind"], row["events"]) for row in statistics["channels"]] == [
        ("orders", "channel", 1),
        ("work", "queue", 0),
    ]
    assert statistics["channels"][0]["counters"]["published"] == 1
    assert [(row["channel"], row["outstanding"]) for row in statistics["durables"]] == [
        ("orders", 1)
    ]
    assert statistics["left_out"] == 0
    assert b'penstock_events{kind="channel",name="orders"} 1.0' in files["metrics.txt"]
    assert missing(files).keys() == {"lines.ndjson"}


# --- secrets ------------------------------------------------------------------------------


class Planted:
    """Distinct secrets, one for each place."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        return self.places.setdefault(place, f"zq{len(self.places):02}secret{place}")

    def found_in(self, files: dict[str, bytes]) -> dict[str, list[str]]:
        """The places whose secret is in a file, by file."""
        hits = {
            name: [place for place, text in self.places.items() if text.encode() in content]
            for name, content in files.items()
        }
        return {name: places for name, places in hits.items() if places}


def fill(session: penstock.Session, secret: Planted) -> None:
    """Plant secrets in a realm."""
    session.access.create_user(secret("user"), secret("password"))
    session.access.create_group(secret("group"))
    session.access.grant(f"{secret('user')}@*", "full")
    orders = session.channels.create("orders", type="persistent")
    orders.publish(
        secret("payload").encode(), tag=secret("tag"), properties={secret("name"): secret("value")}
    )
    orders.durables.create(secret("durable"), type="shared", selector=f"a = '{secret('selector')}'")
    session.channels.create("prices", type="paged").publish(secret("paged").encode())
    session.queues.create("work").push(secret("queued").encode())


def settings_with_secrets(folder: Path, secret: Planted) -> Path:
    """A settings file with free ports, first that of HTTP."""
    certificate, key = Authority(folder, "authority").certificate("realm", days=100)
    (folder / "cluster.secret").write_text(secret("cluster") * 4)
    file = folder / "secret.toml"
    file.write_text(
        f"""name = "{secret("realm")}"
        [http]
        port = 0
        [listen]
        port = 0
        tls_certificate = "{certificate}"
        tls_key = "{key}"
        mqtt_channel = "{secret("mqtt")}"
        [access]
        token_keys = "https://{secret("oidcuser")}:{secret("oidc")}@idp/k?s={secret("oidcquery")}"
        token_audience = "{secret("audience")}"
        token_issuer = "{secret("issuer")}"
        [cluster]
        engine = "postgresql://{secret("dbuser")}:{secret("db")}@db/x?sslkey={secret("dbquery")}"
        blobs = "s3://{secret("s3id")}:{secret("s3")}@bucket/x?endpoint={secret("s3query")}"
        secret_file = "{folder / "cluster.secret"}"
        """
    )
    for line in key.read_text().splitlines()[1:-1]:
        secret.places[f"key {line[:4]}"] = line
    return file


def log_with_secrets(folder: Path, secret: Planted) -> Path:
    password, name = secret("loggedpassword"), secret("loggeduser")
    lines: list[str] = [
        json.dumps(
            {
                "event": "session.refused",
                "level": "warning",
                "timestamp": "2026-11-30T07:00:00Z",
                "code": "access-denied",
                "count": 7,
                "user": name,
                "url": f"postgresql://{name}:{password}@db",
                "reason": f"{password} is wrong",
                password: 5,
                "version": password,
                "exception": f'Traceback\n  File "/home/{name}/penstock/a.py", line 7, in append\n'
                f"ValueError: {password}",
            }
        ),
        f"2026-11-30 07:00:01+01:00 [info     ] realm.x    count=7 reason='{password} count=8'",
        f"2026-11-30 07:00:02.127+01:00 [info     ] realm.y     code=ok {password} count=8",
        f"2026-11-30 07:00:03.127+01:00 [info     ] {password}     count=8",
        json.dumps({"event": f"GET /?token={password}", "level": "info", "count": 1}),
        json.dumps({"event": "realm.z", "level": password}),
        f"ValueError: {password}",
        json.dumps([password]),
        "{" + password,
    ]
    file = folder / "realm.log"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
def test_no_planted_secret_is_in_the_archive(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, *, is_running: bool
) -> None:
    secret = Planted()
    for name in ("PENSTOCK_PASSWORD", "PENSTOCK_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME_OF_MINE"):
        monkeypatch.setenv(name, secret(name.lower()))
    monkeypatch.delenv("PENSTOCK_TOKEN")  # with a token, a client does not use the password
    data = tmp_path / secret("folder") / "data"
    data.parent.mkdir()
    log = log_with_secrets(tmp_path, secret)
    file = settings_with_secrets(tmp_path, secret)
    mode = {"access__mode": "optional", "access__password_rounds": 4_096}
    with penstock.Realm(data, **mode) as realm, realm.connect() as session:
        fill(session, secret)
        (data / secret("file")).write_text(secret("filecontent"))
        (data / "journal" / secret("log")).symlink_to(log)
        if is_running:
            port, web = (url.rpartition(":")[2] for url in (realm.listen(), realm.listen_http()))
            text = file.read_text().replace("port = 0", f"port = {web}", 1)
            file.write_text(text.replace("port = 0", f"port = {port}", 1))
            url = f"penstock://{secret('user')}:{secret('password')}@localhost:{port}"
            doctor(target, "--data", data, "--settings", file, "--log", log, "--url", url)
    if not is_running:
        doctor(target, "--data", data, "--settings", file, "--log", log)

    files = files_in(target)
    assert secret.found_in(files) == {}
    assert len(secret.places) > 30
    assert secret.found_in({"log": log.read_bytes(), "settings": file.read_bytes()}).keys() == {
        "log",
        "settings",
    }
    assert {"statistics.json", "settings.json", "lines.ndjson"} <= files.keys()
    assert ("realm.json" in files) == is_running
    first, second, third = map(json.loads, files["lines.ndjson"].splitlines())
    assert (first["code"], first["count"]) == ("access-denied", 7)
    assert first["frames"] == ["a.py:7:append"]
    assert (second["event"], second["count"]) == ("realm.x", 7)
    assert "count" not in third  # it has a word that is not a field


def test_bad_settings_are_not_quoted(tmp_path: Path, data: Path, target: Path) -> None:
    secret = Planted()
    file = tmp_path / "bad.toml"
    file.write_text(f'[listen]\nport = "{secret("port")}"\n')

    result = doctor(target, "--data", data, "--settings", file)

    files = files_in(target)
    assert result.exit_code == 1
    assert secret("port") in result.stdout  # the operator is told
    assert secret.found_in(files) == {}
    assert missing(files)["settings.json"] == "refused: invalid-argument"
    assert "statistics.json" in files


def test_metrics_with_names_of_clients_are_left_out() -> None:
    text = "\n".join(
        (
            "# HELP penstock_events Stored events.",
            "# TYPE penstock_events gauge",
            'penstock_events{kind="channel",name="a\\"b,user=\\"x"} 1.0',
            'penstock_durable_clients{channel="a",durable="mine"} 2.0',
            'penstock_connection_bytes{connection="7",user="alice"} 3.0',
            'penstock_events{name="a" user="alice"} 4.0',
            "python_info 5.0",
            "penstock_up 6.0",
        )
    )

    assert list(bundle_texts.metrics(text)) == [
        "# TYPE penstock_events gauge",
        'penstock_events{kind="channel",name="a\\"b,user=\\"x"} 1.0',
        "penstock_up 6.0",
    ]


# --- attacks ------------------------------------------------------------------------------


def test_links_out_of_the_data_directory_are_counted_and_not_followed(
    data: Path, settings: Path, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large.log").write_bytes(bytes(999_999))
    (data / "journal" / "out").symlink_to(tmp_path / "outside")
    (data / "more").symlink_to(tmp_path / "outside" / "large.log")
    (data / "journal" / "loop").symlink_to(data)

    files = json.loads(bundle_parts.files(Sources(checks=[], data=data)))

    assert files["links"] == 3
    assert 999_999 not in [size for row in files["files"] for size in row["largest_bytes"]]


def test_names_of_channels_cannot_make_files_or_lines(settings: Path, target: Path) -> None:
    name = '../../etc/x\n"penstock_up 1'
    channel = ChannelRates(
        name=name, kind="channel", events=0, bytes=0, last_event_id=-1,
        counters=Counters(), delivered=0, acknowledged=0,
    )  # fmt: skip
    content = bundle_parts.stored_counters(rates([channel], []))

    assert json.loads(content)["channels"][0]["name"] == name
    assert b"x\\n" in content


def rates(channels: list[ChannelRates], durables: list[DurableRates]) -> RatesNow:
    return RatesNow(
        at_us=0,
        channels=tuple(channels),
        durables=tuple(durables),
        connections=0,
        journal_bytes=0,
        memory_bytes=0,
        left_out=9_000,
    )


def test_very_many_channels_make_an_archive_of_bounded_size() -> None:
    names = [f"{number:04}{'é' * 251}" for number in range(1_000)]
    channels = [
        ChannelRates(
            name=name, kind="channel", events=1 << 60, bytes=1 << 60, last_event_id=1 << 60,
            counters=Counters(*[1 << 60] * len(Counters.__struct_fields__)),
            delivered=1 << 60, acknowledged=1 << 60,
        )
        for name in names
    ]  # fmt: skip
    durables = [
        DurableRates(
            channel=name, name=f"d{number}", outstanding=1 << 60, in_flight=0, pending=0,
            redelivered=0, clients=0, position=0, oldest_outstanding_ms=None, delivered=0,
            acknowledged=0,
        )
        for name in names
        for number in range(50)
    ]  # fmt: skip

    content = bundle_parts.stored_counters(rates(channels, durables))

    document = json.loads(content)
    assert len(content) < 4 << 20
    assert len(document["durables"]) == bundle_parts.DURABLES_MAX
    assert document["durables_left_out"] == 50_000 - bundle_parts.DURABLES_MAX
    assert document["left_out"] == 9_000


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "realm.log"
    line = json.dumps({"event": "realm.x", "level": "info", "count": 1})
    log.write_text(f"{line}\n" * 100_000 + line.replace("1", "2"))

    lines = bundle_parts.log(Sources(checks=[], log=log)).splitlines()

    assert len(lines) == bundle_texts.LINES_MAX
    assert msgspec.json.decode(lines[-1])["count"] == 2


def test_a_pipe_is_not_a_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(bundle_parts.Unobtainable, match="not a regular file"):
        bundle_parts.log(Sources(checks=[], log=tmp_path / "pipe"))


def test_a_part_that_cannot_be_read_is_missing_and_the_others_are_there(
    data: Path, settings: Path, target: Path, tmp_path: Path
) -> None:
    next((data / "registry").glob("format")).write_bytes(b"damaged")

    result = doctor(target, "--data", data, "--settings", settings, "--log", tmp_path / "no.log")

    files = files_in(target)
    assert result.exit_code == 1  # a check has failed, too
    assert missing(files)["lines.ndjson"] == "No such file or directory"
    assert missing(files)["statistics.json"] == "refused: damaged"
    assert {"doctor.json", "files.json"} <= files.keys()


def test_a_text_of_a_check_has_no_path() -> None:
    checks = [
        Check("disk", "ok", "1 GiB free at /srv/zq\nsecret"),
        Check("data", "failed", "secret"),
    ]

    content = bundle_parts.findings(Sources(checks=checks))

    assert b"1 GiB free" in content
    assert b"secret" not in content


# --- the file -----------------------------------------------------------------------------


def test_the_file_is_its_owners_only(data: Path, settings: Path, target: Path) -> None:
    before = os.umask(0)
    try:
        doctor(target, "--settings", settings)
    finally:
        os.umask(before)

    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(target.parent) == [target.name]


def test_an_existing_file_stays_unless_it_may_be_replaced(settings: Path, target: Path) -> None:
    target.write_text("mine")

    refused = doctor(target, "--settings", settings)
    kept = target.read_text()
    replaced = doctor(target, "--settings", settings, "--overwrite")

    assert (refused.exit_code, kept) == (1, "mine")
    assert "--overwrite" in refused.stderr
    assert replaced.exit_code == 0
    assert "manifest.json" in files_in(target)


def test_a_file_that_appears_meanwhile_stays(target: Path) -> None:
    target.write_text("another's")

    with pytest.raises(penstock.InvalidArgument, match="exists"):
        bundle.write_bundle(target, Sources(checks=[]), overwrite=False)

    assert target.read_text() == "another's"
    assert os.listdir(target.parent) == [target.name]


def test_a_link_is_replaced_and_its_target_stays(
    settings: Path, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("mine")
    target.symlink_to(tmp_path / "precious")

    doctor(target, "--settings", settings, "--overwrite")

    assert (tmp_path / "precious").read_text() == "mine"
    assert not target.is_symlink()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file grow above a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_file(settings: Path, target: Path) -> None:
    with file_size_limit(500):
        result = doctor(target, "--settings", settings)

    assert result.exit_code == 1
    assert "no file was created [storage-failed]" in result.stderr
    assert os.listdir(target.parent) == []


@pytest.mark.parametrize("place", ["no/such/support.tar.gz", ".", "data/support.tar.gz"])
def test_a_place_where_it_cannot_be_is_refused_first(
    tmp_path: Path, data: Path, settings: Path, place: str
) -> None:
    result = doctor(tmp_path / place, "--data", data, "--settings", settings)

    assert result.exit_code == 1
    assert "[invalid-argument]" in result.stderr
    assert "python" not in result.stdout


def test_every_setting_is_listed_and_texts_have_no_value(tmp_path: Path) -> None:
    file = tmp_path / "realm.toml"
    file.write_text(
        'name = "berlin"\n[access]\nmode = "optional"\n[limits]\nmax_event_bytes = 9999\n'
    )

    rows = json.loads(bundle_parts.settings(Sources(checks=[], settings=file)))

    options: dict[str, Any] = {row["option"]: row for row in rows}
    assert "value" not in options["name"]
    assert options["name"]["from"] == "file"
    assert options["access.mode"]["value"] == "optional"
    assert options["limits.max_event_bytes"]["value"] == 9_999
    assert options["listen.mqtt_port"]["value"] is None
