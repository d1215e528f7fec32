"""Pages for users of other systems: what each has, and that the programs of others are programs.

Ours are run with all examples. What NATS does is done here, too: its server comes with the locked
packages.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.nats_servers import NatsServers
from tests.docs.pages import COMING_FROM, Block, blocks, name_of, prose

SYSTEMS = [page for page in COMING_FROM if page.stem != "README"]
SECTIONS = ["Words", "The same program in both", "What is different, and why"]
MORE = {
    "rabbitmq": ["Giving up, and trying later", "Request and reply", "Over HTTP"],
    "nats": ["Going back", "Time, and giving up", "Request and reply"],
    "kafka": ["Going back", "Trying again later", "Over HTTP"],
    "pulsar": ["Going back", "Time, and giving up"],
    "jms": ["Request and reply"],
    "universal-messaging": ["Going back"],
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
    assert ours == ["python"] * len(theirs(page)), "each program stands beside one of ours"


@pytest.mark.parametrize("page", SYSTEMS, ids=name_of)
def test_the_program_of_the_other_system_can_be_read_by_its_language(page: Path) -> None:
    for block in theirs(page):
        if block.language == "python":
            ast.parse(block.text, f"{name_of(page)}:{block.line}")
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


@pytest.mark.slow
@pytest.mark.process
def test_the_programs_for_nats_do_what_their_page_says(tmp_path: Path) -> None:
    said = {}
    with NatsServers(tmp_path, servers=1) as servers:
        for block in theirs(next(page for page in SYSTEMS if page.stem == "nats")):
            program = block.text.replace("nats://localhost:4222", servers.urls[0])
            done = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            said[block.file] = done.stdout.split()

    assert said["nats_orders.py"][0] == "0"
    assert said["nats_seek.py"][0] == "3", "all come again"
    assert said["nats_shops.py"] == ["shop.eu", "shop.us"]
    assert said["nats_time.py"] == ["1"], "of three, one is done, and one given up"
    assert said["nats_request.py"] == ["1.25"]
