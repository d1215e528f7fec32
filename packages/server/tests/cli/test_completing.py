"""Completion in the shell: commands, and names of objects of the realm."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess

import pytest
from typer.testing import CliRunner

import penstock
from penstock.client.sync.sync import Channel, Queue
from penstock_server.cli.program import app
from tests.named import TRICKY


def offered(line: str, url: str) -> list[str]:
    """Return the completions that bash would offer for the last word of a line."""
    environment = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(re.split(r"(?<!\\) ", line)) - 1),
        "PENSTOCK_URL": url,
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="penstock")
    assert result.exit_code == 0
    assert result.stderr == ""
    return [word for word in result.stdout.splitlines() if word]


@pytest.fixture
def url(realm: penstock.Realm, orders: Channel, work: Queue) -> str:
    orders.durables.create("billing")
    orders.durables.create("shipping")
    return realm.listen()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("penstock channel sh", ["show"]),
        ("penstock channel show ", ["orders"]),
        ("penstock channel show x", []),
        ("penstock queue show w", ["work"]),
        ("penstock durable show orders b", ["billing"]),
        ("penstock durable show orders ", ["billing", "shipping"]),
        ("penstock durable show nothing ", []),
        ("penstock join create orders ", ["orders", "work"]),
    ],
)
def test_names_of_the_realm_are_offered(url: str, line: str, names: list[str]) -> None:
    assert offered(line, url) == names


def test_without_a_realm_nothing_is_offered_and_nothing_fails() -> None:
    assert offered("penstock channel show o", "penstock://127.0.0.1:1") == []
    assert offered("penstock channel show o", "no url at all") == []


def test_a_realm_that_does_not_answer_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        assert offered("penstock channel show o", f"penstock://127.0.0.1:{port}") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("penstock channel create x --type p", ["paged", "persistent"]),
        ("penstock queue create x --type r", ["reliable"]),
        ("penstock channel create x --engine ", ["default", "jms", "merge"]),
        (
            "penstock durable create orders x --type ",
            ["exclusive", "priority", "serial", "shared", "shared_queued"],
        ),
        ("penstock subscribe orders --durable b", ["billing"]),
        ("penstock channel create x --dead-event-store w", ["work"]),
        ("penstock error damaged-", ["damaged-backup", "damaged-export"]),
    ],
)
def test_types_codes_and_durables_are_offered(url: str, line: str, words: list[str]) -> None:
    assert offered(line, url) == words


@pytest.mark.spec("C2")
def test_any_name_is_one_harmless_word_in_bash(session: penstock.Session, url: str) -> None:
    session.channels.delete("orders")
    for name in TRICKY:
        session.channels.create(name)
    session.channels.create("a;b|c&d<e>f(g)h{i}j!k#l")

    words = offered("penstock channel show ", url)

    assert len(words) == len(TRICKY) + 1
    assert [shlex.split(word) for word in words] == [[name] for name in session.channels.list()]
    assert offered("penstock channel show two\\ w", url) == ["two\\ words"]
    for word in words:
        bare = re.sub(r"\\.", "", word)
        assert not set(bare) & set("$`;|&<>(){}!#*?[]'\" ~:=@%"), "nothing a shell acts on"


@pytest.mark.process
@pytest.mark.spec("C2")
def test_bash_itself_takes_a_word_for_the_name(session: penstock.Session, url: str) -> None:
    for name in TRICKY:
        session.channels.create(name)
    words = offered("penstock channel show ", url)

    script = "\n".join(f"printf '%s\\0' {word}" for word in words)
    output = subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout

    assert output.decode().split("\0")[:-1] == session.channels.list()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_only_names_that_their_scripts_pass_on_unchanged(
    realm: penstock.Realm, session: penstock.Session, shell: str
) -> None:
    session.channels.create("two words").durables.create("\\$(reboot)")
    session.channels.create("it's")
    environment = {
        "_PENSTOCK_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "penstock channel show ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "PENSTOCK_URL": realm.listen(),
    }
    names = CliRunner().invoke(app, [], env=environment, prog_name="penstock").stdout
    environment["_TYPER_COMPLETE_ARGS"] = "penstock durable show 'two words' "
    durables = CliRunner().invoke(app, [], env=environment, prog_name="penstock").stdout

    assert "two words" in names
    assert "it" not in names
    assert "reboot" not in durables
