"""The consumer of the guide in JavaScript, and one that is killed with what it has fetched."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from tests.docs.pages import ROOT, blocks
from tests.interop.programs import program
from tests.patience import until

pytestmark = pytest.mark.process

TEAM = "channels/orders/durables/billing"
KILLED = f"""
import json, os, signal, sys
from urllib.request import Request, urlopen

headers = {{"content-type": "application/json"}}
asked = Request(sys.argv[1] + "/api/v1/{TEAM}/fetch", b'{{"lease_ms": 1500}}', headers)
assert len(json.load(urlopen(asked))["items"]) == 2
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def orders() -> Iterator[tuple[str, penstock.Channel]]:
    with penstock.Realm() as realm, realm.connect() as session:
        channel = session.channels.create("orders")
        channel.durables.create("billing")
        yield realm.listen_http(), channel


@pytest.mark.spec("H1", "H2")
def test_the_guides_consumer_in_javascript_consumes(
    orders: tuple[str, penstock.Channel], tmp_path: Path
) -> None:
    node = program("node", "nodejs")
    url, channel = orders
    [block] = [
        block
        for block in blocks(ROOT / "docs" / "guide" / "http-consumers.md")
        if block.file == "consumer.mjs"
    ]
    script = tmp_path / block.file
    script.write_text(block.text.replace("http://localhost:9080", url), encoding="utf-8")
    billing = channel.durables.get("billing")
    output_file = tmp_path / "said"
    with (
        output_file.open("wb") as out,
        subprocess.Popen([node, str(script)], stdout=out) as consumer,
    ):
        try:
            for batch in range(3):
                channel.publish_many([penstock.Event(f"{batch}/{n}".encode()) for n in range(4)])
                until(lambda: not billing.info().outstanding)
        finally:
            consumer.kill()

    lines = output_file.read_text(encoding="utf-8").splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(12)), "each once, in order"
    assert lines[-1] == "11 2/3"


@pytest.mark.spec("H1")
def test_what_a_killed_client_has_fetched_comes_again(
    orders: tuple[str, penstock.Channel],
) -> None:
    url, channel = orders
    channel.publish_many([penstock.Event(b"a"), penstock.Event(b"b")])
    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL

    fetched = Web(url).send("POST", f"{TEAM}/fetch", {"wait_ms": 30_000})
    assert [(item["event_id"], item["redelivery_count"]) for item in fetched["items"]] == [
        (0, 1),
        (1, 1),
    ]
