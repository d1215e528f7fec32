"""``penstock serve`` in plain words goes round the parser, and means what the parser says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock_core.imports import left_out
from penstock_server.cli import main, program
from penstock_server.cli.serving import server as command
from penstock_server.cli.serving.plain_start import SWITCHES, VALUED, plain_start
from penstock_server.cli.serving.realm_process import ALLOCATOR, FAILED
from penstock_server.cli.shared.server_flags import FLAGS

NO_USE_FOR = (
    "typer",
    "click",
    "pydantic",
    "rich",
    "pygments",
    "pandas",
    "pyarrow.compute",
    "uvicorn",
    "h11",
    "prometheus_client",
    "nats",
    "asyncpg",
    "cryptography",
    "proton",
    "html",
    "shutil",
    "tarfile",
    "tomllib",
    "penstock_server.cli.program",
    "penstock.client.handles.session",
    "penstock.client.sync.sync",
    "penstock_server.frontends.http.server",
    "penstock_amqp.connection",
    "penstock_mqtt.hub",
    "penstock_cluster.nodes.node",
    "penstock_server.bootstrap.embedded_realm",
)
"""A server without HTTP, AMQP and MQTT has no use for these, and each makes its start longer."""


THREADS = "OPENBLAS_NUM_THREADS"


def through_the_parser(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    calls: list[Any] = []

    def run(data: Path, settings: Path | None, flags: dict[str, Any]) -> int:
        calls.append((data, settings, flags))
        return 0

    monkeypatch.setattr(command, "run_realm", run)
    program.app(list(arguments), prog_name="penstock", standalone_mode=False)
    return calls[0]


@pytest.mark.parametrize(
    "arguments",
    [
        "--data d",
        "--data=d --port=0 --no-http",
        "--data d --settings s.toml --http --http-port 9081",
        "--data ~/d --host ::1 --port 09 --amqp-port 1 --mqtt-port 2 --log-level debug",
        "--data d --cluster nats://a,b --node n1 --advertise h --log-format=json",
        "--data d --host=a=b",
    ],
)
def test_simple_arguments_are_read_as_by_the_parser(
    arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = ["serve", *arguments.split()]

    assert plain_start(command_line) == through_the_parser(command_line, monkeypatch)


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--help",
        "serve",
        "serve --help",
        "serve --data",
        "serve --data d --port",
        "serve --data d --port x",
        "serve --data d --port -1",
        "serve --data d --port ٣",
        "serve --data d --port 1 --port 2",
        "serve --data d --http --no-http",
        "serve --data d --http=yes",
        "serve --data d --log-level loud",
        "serve --data d --host=",
        "serve --data d --prot 1",
        "serve --data d more",
        "serve --data --port 1",
        "top --data d",
    ],
)
def test_all_else_is_left_to_the_parser(arguments: str) -> None:
    assert plain_start(arguments.split()) is None


def test_a_shell_that_completes_a_line_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "complete_bash")

    assert plain_start(["serve", "--data", "d"]) is None


def test_each_flag_of_the_command_is_among_the_plain_ones() -> None:
    serve = typer.main.get_command(program.app).commands["serve"]  # type: ignore[attr-defined]
    flags = {
        flag for parameter in serve.params for flag in (*parameter.opts, *parameter.secondary_opts)
    }

    assert flags - {"--help", "-h"} == {*VALUED, *SWITCHES}


def test_an_unused_flag_does_not_set_its_setting() -> None:
    start = plain_start(["serve", "--data", "d", "--port", "1"])

    assert start is not None
    assert start.flags == dict.fromkeys(flag.setting for flag in FLAGS if flag.setting) | {
        "listen.port": 1
    }


@pytest.mark.parametrize(("said", "wanted"), [(None, "1"), ("3", "3")])
def test_a_server_has_no_threads_for_linear_algebra_by_default(
    said: str | None,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untouched_logging: None,
) -> None:
    monkeypatch.setenv(THREADS, said or "")
    if said is None:
        monkeypatch.delenv(THREADS)
    monkeypatch.setenv(ALLOCATOR, "system")
    settings = tmp_path / "missing.toml"

    with pytest.raises(SystemExit) as ended:  # at once, because of its settings
        main(["serve", "--data", f"{tmp_path}", "--settings", f"{settings}"])

    assert ended.value.code == FAILED
    assert os.environ[THREADS] == wanted


def output_of_a_server(
    directory: Path, before: str, flags: Sequence[str] = ("--no-http",)
) -> list[str]:
    """Return the words that a server prints until it is stopped. It is stopped once it listens.
    ``before`` is code that runs before the start."""
    program = f"{before}; from penstock_server.cli import main; main()"
    arguments = ["serve", "--data", str(directory), "--port", "0", *flags]
    server = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    any(json.loads(line)["event"] == "realm.listening" for line in server.stderr)
    server.terminate()
    output, _ = server.communicate()

    assert server.returncode == 0
    return output.split()


@pytest.mark.process
def test_a_server_starts_without_unneeded_modules(tmp_path: Path) -> None:
    loaded = output_of_a_server(
        tmp_path / "d",
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
        "from penstock_server.serving import lifecycle; lifecycle.LOAD_AFTER_S = 3_600",
    )

    assert "penstock_server.serving" in loaded
    assert set(loaded) & set(NO_USE_FOR) == set()


@pytest.mark.process
def test_http_is_loaded_after_the_native_port_is_open(tmp_path: Path) -> None:
    loaded = output_of_a_server(
        tmp_path / "d",
        "import sys; from penstock_server.frontends.native.listener import NativeListener as L; "
        "listen = L.listen; L.listen = lambda *a: (print(*sys.modules, 'END'), listen(*a))[1]; "
        "import atexit; atexit.register(lambda: print(*sys.modules))",
        ["--http-port", "0"],
    )
    end = loaded.index("END")
    at_native_port, at_end = loaded[:end], loaded[end:]

    assert "penstock_server.bootstrap" in at_native_port
    assert "penstock_server.frontends.http.server" not in at_native_port
    assert "penstock_server.frontends.http.server" in at_end


@pytest.mark.process
def test_no_garbage_is_collected_while_a_server_loads(tmp_path: Path) -> None:
    collections = output_of_a_server(
        tmp_path / "d",
        "import gc, sys; gc.callbacks.append(lambda phase, info: print("
        "'late' if gc.get_freeze_count() else 'loading' if 'asyncio' in sys.modules else 'early'"
        ")); gc.collect()",
    )

    assert set(collections) & {"early", "loading"} == {"early"}


@pytest.mark.process
def test_a_failed_start_is_logged_and_has_an_exit_status(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ("serve", "--data", str(tmp_path / "file"), "--port", "0", "--no-http")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False
    )

    assert done.returncode == FAILED
    assert json.loads(done.stderr.splitlines()[-1])["event"] == "realm.failed"


def test_hidden_modules_can_be_imported_afterwards() -> None:
    sys.modules.pop("this", None)
    with left_out("this"), pytest.raises(ModuleNotFoundError, match="is suppressed"):
        __import__("this")

    assert not any(type(finder).__name__ == "_Absent" for finder in sys.meta_path)
