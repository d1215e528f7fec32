"""No block of a page is left out: each is run by a test, read by one, or stands here with why."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

import penstock
from penstock_server.settings.loading import load
from penstock_testing.process import ServerProcess
from scripts.packages import projects
from tests.docs.conftest import write_shop
from tests.docs.left_out import NOT_RUN, reason_not_to_run
from tests.docs.pages import OTHER_PAGES, PAGES, ROOT, SHELLS, Block, Line, blocks, name_of
from tests.docs.reading import OTHERS

ALL = [*PAGES, *OTHER_PAGES]

READ = frozenset(("make", "pip"))
"""Programs whose lines are looked at instead: what they name is there."""
STEPS = frozenset(("export", "cd"))
"""Parts of a block of which the rest stands above."""
RUN_BY_READERS = frozenset(("python", "toml", "yaml", "text", "mermaid", *SHELLS))


def all_blocks() -> list[Block]:
    return [block for page in ALL for block in blocks(page)]


def all_lines() -> list[Line]:
    return [line for block in all_blocks() for line in block.lines()]


def is_run(line: Line) -> bool:
    """Whether a reader of the users' pages, or the test of servers below, runs it."""
    return line.page in PAGES and line.program in {"penstock", *OTHERS}


def place_of(line: Line) -> str:
    return f"{line.place} {line.program}"


@pytest.mark.parametrize("line", all_lines(), ids=place_of)
def test_a_line_for_a_shell_is_run_or_looked_at_or_says_why_not(line: Line) -> None:
    is_known = line.program in READ | STEPS or is_run(line) or reason_not_to_run(line)

    assert is_known, f"{line.place}: nobody runs {line.text!r}"


def test_a_page_that_calls_protoc_says_how_to_install_it() -> None:
    pages = {line.page for line in all_lines() if line.program == "protoc"}

    assert pages
    for page in pages:
        before = page.read_text(encoding="utf-8").partition("\nprotoc ")[0]
        assert "protobuf-compiler" in before, name_of(page)
        assert "grpcio-tools" in before, name_of(page)


def test_there_is_a_line_for_each_reason() -> None:
    used = {reason_not_to_run(line) for line in all_lines()} - {""}

    assert set(NOT_RUN.values()) == used


def test_every_language_of_a_block_has_somebody_who_reads_it() -> None:
    """What has the name of a file is written to it, and read by what comes after it."""
    assert {block.language for block in all_blocks() if not block.file} <= RUN_BY_READERS


PROGRAMS = "|".join(("penstock", "pip", "curl", "make", "openssl", "docker", "python", "sudo"))


def test_no_command_hides_in_a_block_that_is_not_run() -> None:
    hidden = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:{PROGRAMS}) ", re.MULTILINE)

    unmarked = [
        f"{name_of(block.page)}:{block.line}"
        for block in all_blocks()
        if block.language == "text" and hidden.search(block.text)
    ]

    assert unmarked == []


def lines_of(program: str) -> list[Line]:
    return [line for line in all_lines() if line.program == program]


@pytest.mark.slow
@pytest.mark.parametrize("line", lines_of("make"), ids=place_of)
def test_a_door_that_is_named_is_there(line: Line) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *line.parts[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, f"{line.place}: {done.stderr}"


@pytest.mark.parametrize("line", lines_of("pip"), ids=place_of)
def test_what_is_to_be_installed_is_this_package_with_extras_that_it_has(line: Line) -> None:
    _, install, wanted = line.parts
    requirement = re.fullmatch(r"(\.|[\w-]+)(?:\[([\w,-]+)\])?", wanted)

    assert install == "install"
    assert requirement is not None
    project = projects()[requirement[1]]
    assert (
        set((requirement[2] or "").split(",")) - {""}
        <= project.get("optional-dependencies", {}).keys()
    )


@pytest.fixture(scope="module")
def exposed() -> str:
    """The metrics of a realm with a channel and a durable."""
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("orders").durables.create("billing")
        with urlopen(f"{realm.listen_http()}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
            return text


@pytest.mark.parametrize(
    "block",
    [block for block in all_blocks() if block.language == "yaml"],
    ids=lambda block: block.line,
)
def test_yaml_reads_and_names_metrics_that_there_are(block: Block, exposed: str) -> None:
    workflow: Any = yaml.safe_load(block.text)

    assert workflow
    for name in re.findall(r"penstock_\w+", block.text):
        assert f"# TYPE {name} " in exposed, f"{name_of(block.page)}: {name}"


@pytest.mark.parametrize(
    "block",
    [block for block in all_blocks() if block.language == "toml" and block.file == "realm.toml"],
    ids=lambda block: block.line,
)
def test_a_settings_file_that_readers_write_is_one(block: Block) -> None:
    assert load(block.text) != load()


SERVERS = sorted(
    {
        " ".join(command.arguments): command
        for page in PAGES
        for block in blocks(page)
        for command in block.commands()
        if command.arguments[0] == "serve"
        and "--cluster" not in command.arguments
        and "tls-and-users" not in command.place
    }.values(),
    key=lambda command: command.text,
)
"""Each way in which pages start a realm of its own, once; nodes of a cluster need an engine."""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("command", SERVERS, ids=lambda command: command.text)
def test_a_realm_starts_as_pages_say_and_ends_in_order(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At ports that are free: the numbers on the pages may be taken here."""
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path)
    flags = re.sub(r"(--\w*-?port) \d+", r"\1 0", " ".join(command.arguments[1:])).split()
    data = flags[flags.index("--data") + 1]
    if "--no-http" not in flags:
        flags += ["--http", "--http-port", "0"]

    with ServerProcess(tmp_path / data, *flags) as server:
        assert server.url
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
