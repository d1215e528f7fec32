"""``penstock serve`` as a separate process: its start and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock_testing.process import ServerDidNotStart, ServerProcess

if TYPE_CHECKING:
    from tests.plugin import Serve

pytestmark = pytest.mark.process


def publish(server: ServerProcess, *texts: bytes) -> None:
    with penstock.connect(server.url) as session:
        if "orders" not in session.channels.list():
            session.channels.create("orders", type="persistent")
        channel = session.channels.get("orders")
        for text in texts:
            channel.publish(text)


def stored(server: ServerProcess) -> list[bytes]:
    with penstock.connect(server.url) as session:
        return [event.data for event in session.channels.get("orders").browse()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(serve: Serve, number: signal.Signals) -> None:
    server = serve()
    publish(server, b"one", b"two")

    server.signal(number)

    assert server.wait() == 0
    assert server.logged("realm.stopping")[0]["signal"] == number.name
    assert server.logged("realm.stopped")[0]["on_disk"] == "everything acknowledged"
    assert stored(serve()) == [b"one", b"two"]


def test_a_closed_log_does_not_stop_the_realm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if b"realm.listening" in line)
        url = json.loads(line)["url"]
        server.stderr.close()
        with penstock.connect(url) as session:
            session.channels.create("orders", type="persistent").publish(b"one")

        server.send_signal(signal.SIGTERM)

        assert server.wait(30) == 0


def test_the_start_logs_one_screen_with_the_recovered_content(serve: Serve) -> None:
    first = serve()
    publish(first, b"one", b"two")
    first.kill()

    server = serve()
    (starting,) = server.logged("realm.starting")
    (recovered,) = server.logged("realm.recovered")

    assert starting["version"] == penstock.__version__
    assert starting["data"] == str(server.directory)
    assert (recovered["channels"], recovered["events"], recovered["damage"]) == (1, 2, 0)
    assert server.logged("realm.listening")[0]["url"] == server.url
    assert len(server.log.splitlines()) < 24


def test_a_session_lasts_while_a_successor_takes_the_port(serve: Serve) -> None:
    first = serve()
    with penstock.connect(first.url) as session:
        channel = session.channels.create("orders")
        channel.publish(b"one")
        first.kill()
        serve("--port", str(first.port))

        assert channel.publish(b"two") == 1
        assert session.info().channels == 1


def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    server = serve()
    publish(server, b"one")
    server.signal(signal.SIGSTOP)  # so that it finds both signals together
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGINT)

    server.signal(signal.SIGCONT)

    assert server.wait() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert server.logged("realm.abandoned")
    assert stored(serve()) == [b"one"]


def test_damage_is_a_warning_and_the_rest_is_served(serve: Serve) -> None:
    first = serve()
    publish(first, b"before", b"damaged event", b"after")
    first.kill()
    (journal,) = (first.directory / "journal").iterdir()
    content = journal.read_bytes()
    offset = content.index(b"damaged event")
    journal.write_bytes(content[:offset] + b"D" + content[offset + 1 :])

    server = serve()

    assert [entry["level"] for entry in server.logged("realm.damage")] == ["warning"]
    assert server.logged("realm.recovered")[0]["damage"] == 1
    assert stored(server) == [b"before", b"after"]


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        'name = "from file"\n[listen]\nconnections_max = 3\n[limits]\nmemory_bytes = 111\n'
        '[log]\nlevel = "error"\n'
    )
    environment = {"PENSTOCK_LISTEN_CONNECTIONS_MAX": "4", "PENSTOCK_LOG_LEVEL": "error"}
    flags = ("--settings", str(file), "--log-level", "info")

    with (
        ServerProcess(tmp_path / "data", *flags, environment=environment) as server,
        penstock.connect(server.url) as session,
    ):
        (limits,) = server.logged("realm.limits")

        assert (limits["memory_bytes"], limits["connections"]) == (111, 4)
        assert session.info().name == "from file"


def test_text_is_for_people(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(ServerDidNotStart) as stopped, taken_port() as port:
        serve("--log-format", "text", "--port", str(port))

    lines = str(stopped.value).splitlines()
    line = next(line for line in lines if "realm.recovered" in line)
    assert "channels=0 events=0" in line
    assert "[error    ] realm.failed         code=address-in-use reason=" in lines[-1]


def test_a_misspelt_variable_keeps_it_from_starting(tmp_path: Path) -> None:
    environment = {"PENSTOCK_LISTN_PORT": "0"}
    with (
        pytest.raises(ServerDidNotStart) as stopped,
        ServerProcess(tmp_path / "data", environment=environment),
    ):
        pass

    check_one_clear_line(
        str(stopped.value), "did you mean PENSTOCK_LISTEN_PORT?", "invalid-argument"
    )
    assert not (tmp_path / "data").exists()


@contextmanager
def taken_port() -> Iterator[int]:
    """Yield a port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def refusal(directory: Path, *arguments: str) -> str:
    """Return the error of a server that does not start."""
    with pytest.raises(ServerDidNotStart) as stopped, ServerProcess(directory, *arguments):
        pass
    return str(stopped.value)


def check_one_clear_line(text: str, message: str, code: str) -> None:
    assert text.startswith("exit status 1,")
    assert "Traceback" not in text
    *_, last = text.splitlines()
    entry = json.loads(last)
    assert (entry["level"], entry["event"], entry["code"]) == ("error", "realm.failed", code)
    assert message in entry["reason"]
    assert "timestamp" in entry


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    with taken_port() as port:
        text = refusal(tmp_path / "data", "--port", str(port))

    check_one_clear_line(text, f"port {port} of 127.0.0.1 is in use", "address-in-use")


def test_a_data_directory_has_one_realm(serve: Serve) -> None:
    server = serve()

    text = refusal(server.directory)

    check_one_clear_line(text, f"is in use by the process {server.pid}", "data-directory-in-use")
    assert server.is_running


def test_a_directory_that_is_not_a_realm_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")

    text = refusal(tmp_path)

    check_one_clear_line(text, "is not a Penstock data directory", "invalid-argument")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_newer_format_is_left_to_the_version_that_wrote_it(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    first.terminate()
    record = next(
        path
        for path in (first.directory / "registry").iterdir()
        if b'{"format": ' in path.read_bytes()
    )
    rewritten = with_format(record.read_bytes(), 9)
    record.write_bytes(rewritten)

    text = refusal(first.directory)

    check_one_clear_line(text, "has format 9", "newer-format")
    assert record.read_bytes() == rewritten


def with_format(record: bytes, number: int) -> bytes:
    """The format record of another version, its checksum right."""
    from penstock_core.vocabulary.ports import VersionedRecord
    from penstock_server.storage.embedded.records import RecordFiles
    from penstock_testing.disk import FaultyDisk

    disk = FaultyDisk()
    disk.make_directory("/registry")
    files = RecordFiles(disk, "/registry")
    files.store("format", VersionedRecord(1, b'{"format": %d}' % number))
    return disk.content(files.where("format"))


@pytest.mark.spec("A4")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_authentication_only_this_machine_may_come(tmp_path: Path, host: str) -> None:
    text = refusal(tmp_path / "data", "--host", host)

    check_one_clear_line(text, "authentication is off", "invalid-argument")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[listen]\nprot = 9000\n", "did you mean listen.port?"),
        ("[limits]\nmemory_bytes = -1\n", "limits.memory_bytes must be at least 0, not -1"),
        ("listen = 5\n", "listen"),
        ("port: 9000\n", "settings.toml is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_settings_that_are_wrong_are_named(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "settings.toml"
    if content is not None:
        file.write_text(content)

    text = refusal(tmp_path / "data", "--settings", str(file))

    check_one_clear_line(text, message, "invalid-argument")


@pytest.mark.parametrize("flags", [["--log-level", "loud"], ["--port", "first"], ["--prot", "1"]])
def test_wrong_usage_exits_with_2(tmp_path: Path, flags: list[str]) -> None:
    text = refusal(tmp_path / "data", *flags)

    assert text.startswith("exit status 2,")
    assert "Traceback" not in text


def test_the_log_is_json_without_a_terminal(serve: Serve) -> None:
    server = serve("--log-format", "auto")
    server.terminate()

    entries = [json.loads(line) for line in server.log.splitlines()]

    assert [entry["event"] for entry in entries][:2] == ["realm.starting", "realm.recovered"]
    assert list(entries[0])[:3] == ["timestamp", "level", "event"]


def test_a_process_has_ended_when_the_block_ends(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        pid = server.pid

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
