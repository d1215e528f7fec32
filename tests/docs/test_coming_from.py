"""Pages for users of other systems: what each has, and that the programs of others are programs.

Ours are run with all examples. What NATS does is done here, too: its server comes with the locked
packages. The programs of JMS are run by ``tests/interop/test_coming_from.py``.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_testing.nats_servers import NatsServers
from tests.docs.pages import COMING_FROM, Block, blocks, name_of, prose

SYSTEMS = [page for page in COMING_FROM if page.stem != "README"]
SECTIONS = ["Words", "The same program in both", "What is different, and why"]
ASKED, HTTP, SHELL = "Request and reply", "Over HTTP", "At the command line"
MORE = {
    "rabbitmq": ["Giving up, and trying later", "In time", "Going back", ASKED, HTTP, SHELL],
    "nats": ["Going back", "Time, and giving up", ASKED, SHELL],
    "kafka": ["Going back", "Trying again later", "In time", ASKED, HTTP, SHELL],
    "pulsar": ["Going back", "Time, and giving up", ASKED, HTTP, SHELL],
    "jms": ["Trying later", "Giving up", ASKED],
    "universal-messaging": ["Going back", ASKED, SHELL],
}
"""What else the users of each system do there, with a pair of programs for each."""
RUN_TIMEOUT_S = 60


def theirs(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.file]


def test_there_is_a_page_for_each_system() -> None:
    written = {page.stem for page in SYSTEMS}

    assert written == {"rabbitmq", "nats", "kafka", "pulsar", "jms", "universal-messaging"}


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_a_page_has_words_a_program_in_both_and_what_is_different(page: Path) -> None:
    text = prose(page)

    more = MORE[page.stem]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [*SECTIONS[:2], *more, SECTIONS[2]]
    assert "was checked with" in text or "It speaks of" in text
    assert "**What you give up.**" in text
    assert theirs(page)
    ours = [block.language for block in blocks(page) if not block.file]
    beside = ["sh" if block.language == "sh" else "python" for block in theirs(page)]
    assert ours == beside, "each program stands beside one of ours"


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_the_program_of_the_other_system_can_be_read_by_its_language(page: Path) -> None:
    for block in theirs(page):
        if block.language == "python":
            ast.parse(block.text, f"{name_of(page)}:{block.line}")
        elif block.language == "sh":
            read = ["bash", "-n", "-c", block.text]
            assert not subprocess.run(read, capture_output=True, check=True).stderr
        else:
            assert block.language == "java"
            assert f"public class {block.file.removesuffix('.java')} " in block.text
            assert block.text.count("{") == block.text.count("}")


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_what_a_program_takes_from_a_client_that_is_here_is_in_it(page: Path) -> None:
    programs = [block.text for block in theirs(page) if block.language == "python"]
    for node in (node for program in programs for node in ast.walk(ast.parse(program))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if importlib.util.find_spec(node.module.partition(".")[0]) is None:
                continue
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module


LINES = [
    "time to breathe after a failure",
    "acknowledging in time",
    "rejecting",
    "going back",
    "patterns",
    "request and reply",
    "consuming over HTTP",
    "a realm as a file",
    "operating",
    "load on a realm of one's own",
]
"""What users of other systems reach for."""


def test_the_index_says_of_each_system_where_a_program_in_both_is_or_that_it_has_none() -> None:
    index = prose(next(page for page in COMING_FROM if page.stem == "README"))
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\| .*\|$", index, re.MULTILINE)]
    cells_by_system = {row[0]: row[1:] for row in rows if "](" in row[-1]}

    assert list(cells_by_system) == LINES
    for cells in cells_by_system.values():
        links = [re.fullmatch(r"\[(both|none)\]\(([\w-]+)\.md#([\w-]+)\)", cell) for cell in cells]
        assert [link and link[2] for link in links] == list(MORE)
        for link in filter(None, links):
            assert link[1] == "none" or link[3] != "words", "a program has a place of its own"


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_a_page_says_what_the_other_system_does_not_have(page: Path) -> None:
    """Where the index says *none*, the page has a line for it."""
    index = prose(next(page for page in COMING_FROM if page.stem == "README"))
    without = index.count(f"[none]({page.name}#words)")
    lines = re.findall(r"^\| none: (.*?) \|", prose(page), re.MULTILINE)

    assert bool(lines) == bool(without)


@pytest.mark.slow
@pytest.mark.process
def test_the_programs_for_nats_do_what_their_page_says(tmp_path: Path) -> None:
    outputs = {}
    with NatsServers(tmp_path, servers=1) as servers:
        programs = theirs(next(page for page in SYSTEMS if page.stem == "nats"))
        for block in (program for program in programs if program.language == "python"):
            program = block.text.replace("nats://localhost:4222", servers.urls[0])
            done = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            outputs[block.file] = done.stdout.split()

    assert outputs["nats_orders.py"][0] == "0"
    assert outputs["nats_seek.py"][0] == "3", "all come again"
    assert outputs["nats_shops.py"] == ["shop.eu", "shop.us"]
    assert outputs["nats_time.py"] == ["1"], "of three, one is done, and one given up"
    assert outputs["nats_request.py"] == ["1.25"]
