"""Commands whose output is not read, or whose encoding lacks characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock_testing.process import ServerProcess

if TYPE_CHECKING:
    from tests.plugin import Serve

pytestmark = pytest.mark.process

EVENTS = 3_000
"""More than a reader fetches at a time. What it fetches at a time takes more room, in each format,
than a pipe has (64 KiB) and `head` reads at once."""
Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def server(serve: Serve) -> ServerProcess:
    return serve()


@pytest.fixture
def session(server: ServerProcess) -> Iterator[penstock.Session]:
    with penstock.connect(server.url) as opened:
        yield opened


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    """Return a function that runs a line of bash with the command ``penstock``."""

    def run(line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        function = f'penstock() {{ "{sys.executable}" -m penstock "$@"; }}; set -o pipefail; '
        environment = {**os.environ, "PENSTOCK_URL": server.url, **variables}
        return subprocess.run(
            ["bash", "-c", function + line], env=environment, capture_output=True, check=False
        )

    return run


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.spec("Q1")
@pytest.mark.parametrize("format", ["json", "table"])
def test_events_not_printed_stay_on_their_queue(
    session: penstock.Session, shell: Shell, format: str
) -> None:
    queue = session.queues.create("work")
    queue.push_many([penstock.Event(b"%040d" % n) for n in range(EVENTS)])
    read = f"penstock queue read work --timeout 0.5 --format {format}"

    first = shell(f"{read} | head -n 1")
    left_by_head = queue.info().events
    full = shell(f"{read} > /dev/full")

    assert first.stdout.count(b"\n") == 1
    assert left_by_head == EVENTS
    assert (full.returncode, full.stderr) == (
        1,
        b"error: the output could not be written: No space left on device\n",
    )
    assert queue.info().events == EVENTS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("format", ["table", "json", "arrow"])
def test_a_full_disk_is_one_line(session: penstock.Session, shell: Shell, format: str) -> None:
    session.channels.create("orders").publish_many([penstock.Event(b"x")] * 2_000)

    full = shell(f"penstock browse orders --format {format} > /dev/full")

    assert full.returncode == 1
    assert full.stderr.startswith(b"error: the output could not be written: ")
    assert full.stderr.count(b"\n") == 1


def test_characters_that_the_output_lacks_are_escaped(
    session: penstock.Session, shell: Shell
) -> None:
    made = shell("penstock channel create Straße", PYTHONIOENCODING="ascii")
    shell("penstock publish Straße 日本")
    table = shell("penstock browse Straße", PYTHONIOENCODING="latin-1")
    lines = shell("penstock browse Straße --format json", PYTHONIOENCODING="cp1252")

    assert (made.returncode, made.stderr) == (0, b"")
    assert rb"\xdf" in made.stdout
    assert rb"\u65e5\u672c" in table.stdout
    assert json.loads(lines.stdout)["data"] == "日本"


def test_an_argument_that_is_not_utf_8_is_data(session: penstock.Session, shell: Shell) -> None:
    channel, queue = session.channels.create("c"), session.queues.create("n")

    shell(r"penstock publish c $'x\xff'; penstock queue push n $'\xff'")

    assert [event.data for event in channel.browse()] == [b"x\xff"]
    assert [event.data for event in queue.peek()] == [b"\xff"]


@pytest.mark.spec("E2")
def test_browsed_json_can_be_published_unchanged(session: penstock.Session, shell: Shell) -> None:
    source = session.channels.create("source")
    copy = session.channels.create("copy")
    properties = {"raw": b"\x00\xff", "x": float("inf"), "list": [float("-inf"), b"a"]}
    source.publish(b"\xff", properties=properties, tag="t", priority=7)

    shell("penstock browse source --format json | penstock publish copy --file -")
    (event,) = copy.browse()

    assert (event.data, event.tag, event.priority) == (b"\xff", "t", 7)
    assert {name: event.properties[name] for name in properties} == properties
