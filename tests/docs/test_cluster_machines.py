"""The page about three machines: its commands belong together, although no test can run them."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import parse_qs, urlsplit

from penstock_server.settings.loading import load
from tests.docs.pages import ROOT

PAGE: Final = (ROOT / "docs" / "guide" / "cluster-machines.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS: Final = [
    shlex.split(line)
    for language, block in BLOCKS
    for line in block.splitlines()
    if (language == "sh" or line.startswith("ExecStart=/")) and not line.startswith("#")
]
"""Every command of the page, in its order, also that of the service."""
NODES: Final = [command for command in COMMANDS if command[-1] and "node" in command]
MACHINES: Final = ["a", "b", "c"]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_directories_are_created_before_a_command_uses_them() -> None:
    """`useradd --home-dir` creates none, so the first command of an unprivileged user failed."""
    created: list[str] = []
    used: list[str] = []
    for command in COMMANDS:
        if "install" in command and "-d" in command:
            assert command[command.index("-o") + 1] == "penstock"
            created += [word for word in command if word.startswith("/") and "bin" not in word]
        for word in command:
            if re.match(r"/(etc|var/lib)/penstock", word) and word not in created:
                used.append(word)
                parents = {str(parent) for parent in PurePosixPath(word).parents}
                is_home = command[command.index(word) - 1] == "--home-dir"
                assert is_home or parents & set(created), command

    assert created == ["/etc/penstock", "/var/lib/penstock"]
    assert len(used) > 4


def test_every_list_of_machines_on_the_page_is_the_same() -> None:
    assert len(NODES) == 2
    for command in NODES:
        peers = dict(peer.split("=") for peer in option(command, "--peers").split(","))
        assert list(peers) == list(peers.values()) == MACHINES
        assert option(command, "--name") in MACHINES
    (settings,) = [tomllib.loads(block) for language, block in BLOCKS if language == "toml"]
    assert settings["listen"]["tls_self_signed"].split(",") == MACHINES
    assert PAGE.count("tls_self_signed =") == 1


def test_its_settings_are_settings() -> None:
    document = next(block for language, block in BLOCKS if language == "toml")

    assert load(document).listen.tls_self_signed == ",".join(MACHINES)


def test_programs_trust_the_certificates_of_all_machines() -> None:
    (url,) = re.findall(r"^penstocks://\S+$", PAGE, re.MULTILINE)
    parts = urlsplit(url)
    assert [host.partition(":")[0] for host in parts.netloc.split(",")] == MACHINES
    assert parse_qs(parts.query)["ca"] == ["cluster.pem"]
    assert "`/var/lib/penstock/node/tls/realm.pem` of a, b and c" in PAGE, "which files are in it"
    assert "keep a copy of `/var/lib/penstock/node/tls`" in PAGE, "a new certificate locks out"


def test_every_drain_ends() -> None:
    drains = re.findall(r"cluster drain (\w)( --end)?", PAGE)

    assert drains
    assert drains == [("a", ""), ("a", " --end")] * (len(drains) // 2)
