"""A realm in a separate process survives requests with extreme values, in bounded memory; ``make
fuzz`` measures how quickly it answers meanwhile."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import penstock
from tests.fuzz import served
from tests.fuzz.__main__ import main
from tests.fuzz.drawing import Drawn, Guided, decode_requests, drawn, encode_requests
from tests.fuzz.pinging import memory_in
from tests.fuzz.served import Attacked, Broken, attack, is_answered

MEMORY_BYTES = 400 << 20


@pytest.mark.slow
@pytest.mark.process
def test_a_server_lives_through_extreme_values_over_every_protocol() -> None:
    outcome = attack(seed=1, examples=240, memory_bytes=MEMORY_BYTES, ping_s_max=60.0)

    assert outcome.broken == ""
    assert outcome.done == 240
    assert outcome.pings > 0


@pytest.mark.slow
@pytest.mark.process
def test_a_server_that_counts_its_branches_leads_to_inputs_that_reach_more(tmp_path: Path) -> None:
    seeds = Guided(2, tmp_path / "none").kept
    outcome = attack(seed=2, examples=100, memory_bytes=MEMORY_BYTES, corpus=tmp_path / "kept")

    assert outcome.broken == ""
    assert seeds < outcome.kept <= seeds + 100
    assert Guided(2, tmp_path / "kept").kept == outcome.kept, "the next run begins with them"
    assert 0 < outcome.reached < outcome.branches


@pytest.mark.slow
@pytest.mark.process
def test_a_failure_is_printed_with_the_seed_and_the_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The bound on memory is too small for any process."""
    status = main(["--only", "served", "--seed", "3", "--examples", "5", "--memory-mib", "1"])
    output = capsys.readouterr().out

    assert status == 1
    assert "1 MiB are allowed" in output
    assert "--only served --seed 3 --examples 1" in output
    path = output.split("--input-file ")[1].split()[0]
    assert main(["--only", "served", "--input-file", path]) == 0


@pytest.mark.slow
@pytest.mark.process
def test_a_process_that_ends_is_noticed() -> None:
    with Attacked(MEMORY_BYTES) as realm:
        realm.check()
        realm.server.kill()

        with pytest.raises(Broken, match="the process has ended"):
            realm.check()


@pytest.mark.slow
@pytest.mark.process
def test_stores_that_have_grown_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    with Attacked(MEMORY_BYTES) as realm, penstock.connect(realm.server.url) as session:
        orders = session.channels.get("orders")
        for n in range(100):
            orders.publish(b"x", properties={"n": n % 5})
        realm.set_up()
        assert orders.info().events > 0

        monkeypatch.setattr(served, "STORED_BYTES_MAX", 0)
        realm.set_up()
        assert orders.info().events == 0


@pytest.mark.slow
def test_a_seed_draws_the_same_requests_in_every_protocol() -> None:
    first = [(request.what, request.protocol) for request in islice(drawn(5), 150)]

    assert first == [(request.what, request.protocol) for request in islice(drawn(5), 150)]
    assert first != [(request.what, request.protocol) for request in islice(drawn(6), 150)]
    assert {protocol for _, protocol in first} >= {"native", "http"}


def test_requests_to_repeat_are_kept_whole() -> None:
    last = [Drawn("one", "http", b"GET"), Drawn("other", "mqtt", b"\xc0\0")]

    repeated = [Drawn("repeated", request.protocol, request.data) for request in last]
    assert decode_requests(encode_requests(last)) == repeated


def test_pages_of_mapped_files_are_not_memory_of_the_process() -> None:
    status = (
        "Name:\tpython\nVmHWM:\t  500 kB\nVmRSS:\t 300 kB\nRssAnon:\t 90 kB\nRssFile:\t 200 kB\n"
    )

    assert memory_in(f"{status}RssShmem:\t 10 kB\nThreads:\t9\n") == (100 << 10, 500 << 10)
    assert memory_in("Name:\tpython\nState:\tZ (zombie)\n") == (0, 0), "it has ended"


def test_an_answer_is_whole_by_its_length_and_a_stream_at_once() -> None:
    assert not is_answered(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
    assert is_answered(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
    assert is_answered(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    assert not is_answered(b"HTTP/1.1 200 OK\r\n")
