"""Every shape of the benchmark runs, however small, and says so where a peer is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bench import http_peers, jars, mqtt_peers, store
from bench.plots import draw
from bench.report import Cell, Result, between_marks, markdown
from bench.shape import ours_in, peers, shapes
from tests.interop.programs import WITHOUT_PROTON, program

ROOT = Path(__file__).parent.parent.parent
SPARK = ("S12", "S12P", "S12T")
AMQP = "S15"
FLOODS = "S16"
"""One of its clients speaks AMQP."""
MQTT = {"S17": "round trip", "S18": "offline"}
"""Shapes of MQTT, whose peers are others, and the case of each that CI has time for."""
PLAYED = [
    ("redis", ["S1", "S3", "S5"], "columns D1"),
    ("redis", ["S5"], "restart"),
    ("redis", ["S11"], "10,000/s"),
    ("postgres", ["S1", "S3", "S5"], "columns D1"),
    *((peer, ["S1"], "columns D1") for peer in ("artemis", "kafka", "rabbitmq")),
]
"""Peers beside NATS, and what CI has them do: some need long to start."""
BESIDE = {"C1": "rabbitmq-cluster"}
"""The system beside which a shape runs, if it is not NATS."""


def run_bench(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env=os.environ | ({} if path is None else {"PATH": path}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def results_in(file: Path) -> dict[str, Result]:
    results = msgspec.json.decode(file.read_bytes(), type=list[Result])
    return {result.shape: result for result in results}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "shape", [name for name in shapes() if name not in (*SPARK, AMQP, FLOODS, *MQTT)]
)
def test_a_shape_measures_its_contenders_or_says_what_they_lack(shape: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    beside = BESIDE.get(shape, "nats")
    done = run_bench(shape, "--quick", "--peer", beside, "--json", str(kept))

    assert done.returncode == 0, done.stderr
    result = results_in(kept)[shape]
    ours = ours_in(shapes()[shape])
    wanted = {"penstock", ours, beside} & set(shapes()[shape].contenders)
    assert {cell.contender for cell in result.cells} == wanted
    for cell in result.cells:
        assert cell.missing or all(run[result.figure] > 0 for run in cell.runs)
        assert cell.missing or len(cell.runs) == 1
    assert all(cell.runs for cell in result.cells if cell.contender in ("penstock", ours))


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("peer", "work", "case"), PLAYED)
def test_a_peer_that_is_installed_does_the_work(
    peer: str, work: Sequence[str], case: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(
        *work, "--quick", "--peer", peer, "--case", case, "--json", str(kept)
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    for result in results_in(kept).values():
        assert peers()[peer].missing() or peer in result.versions
        for cell in result.cells:
            is_there = cell.contender == "penstock" or not peers()[peer].missing()
            assert bool(cell.runs) == is_there, cell


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("shape", MQTT)
def test_a_shape_of_mqtt_measures_its_contenders_or_says_what_they_lack(
    shape: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(
        shape, "--quick", "--case", MQTT[shape], "--peer", "mosquitto", "--json", str(kept)
    )

    assert done.returncode == 0, done.stderr
    result = results_in(kept)[shape]
    ours, theirs = result.cells
    assert [table_cell.contender for table_cell in result.cells] == ["penstock", "mosquitto"]
    assert ours.runs[0]["of_server_cpu_s_per_million"] >= 0
    assert theirs.runs or theirs.missing == mqtt_peers.missing("mosquitto")


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("peer", ["rabbitmq", "nsqd"])
def test_an_event_is_published_over_http_to_each_server_that_is_installed(
    peer: str, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench("S21", "--quick", "--peer", peer, "--json", str(kept))

    assert done.returncode == 0, done.stderr
    ours, theirs = results_in(kept)["S21"].cells
    assert (ours.contender, theirs.contender) == ("penstock", peer)
    assert theirs.missing == http_peers.missing(peer)
    for cell in (ours, theirs):
        assert all(0 < run["p50_us"] <= run["p99_us"] for run in cell.runs)
        assert bool(cell.runs) != bool(cell.missing)


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("way", ["sealed files, three", "as a table, three"])
def test_spark_reads_and_writes_what_was_stored(way: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench("S12", "--quick", "--case", way, "--json", str(kept))

    assert done.returncode == 0, done.stderr
    assert [len(cell.runs) for cell in results_in(kept)["S12"].cells] == [1, 1]


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_the_steps_of_pipelines_give_what_spark_makes_of_files(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench("S12P", "--quick", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    cells = results_in(kept)["S12P"].cells
    assert [len(cell.runs) for cell in cells] == [1] * 8, [cell.missing for cell in cells]


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("peer", ["artemis", "rabbitmq"])
def test_a_c_client_sends_by_amqp_to_whoever_is_installed(peer: str, tmp_path: Path) -> None:
    pytest.importorskip("proton", reason=WITHOUT_PROTON)
    kept = tmp_path / "kept.json"

    done = run_bench(AMQP, "--quick", "--case", "C client", "--peer", peer, "--json", str(kept))

    assert done.returncode == 0, done.stderr
    cells = results_in(kept)[AMQP].cells
    assert [cell.contender for cell in cells] == ["penstock", peer] * 2
    for cell in cells:
        if cell.contender == "penstock" or not peers()[peer].missing():
            [run] = cell.runs
            assert run["events_per_s"] > 1_000, "200 ms are enough for more than the first round"
            assert run["of_server_cpu_s_per_million"] >= 0


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
def test_a_client_of_each_protocol_publishes_beside_a_flood(tmp_path: Path) -> None:
    pytest.importorskip("proton", reason=WITHOUT_PROTON)
    kept = tmp_path / "kept.json"

    done = run_bench(FLOODS, "--quick", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    cells = results_in(kept)[FLOODS].cells
    assert {table_cell.case.partition(" ")[0] for table_cell in cells} == {"native", "HTTP", "AMQP"}
    for cell in cells:
        [run] = cell.runs
        assert run["slowdown"] == run["p50_us"] / run["p50_us_before"] > 0


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_a_jms_client_sends_by_amqp(tmp_path: Path) -> None:
    pytest.importorskip("proton", reason=WITHOUT_PROTON)
    program("javac", "openjdk-17-jdk-headless")
    if reason := jars.missing("qpid-jms"):
        program("mvn", "maven")
        if run_bench("install", "qpid-jms").returncode:
            pytest.skip(f"Maven cannot fetch the client: {reason}")
    kept = tmp_path / "kept.json"

    done = run_bench(AMQP, "--quick", "--case", "JMS", "--peer", "nats", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    [run] = (run for cell in results_in(kept)[AMQP].cells for run in cell.runs)
    assert 0 < run["p50_us"] <= run["p99_us"] < 1e6
    assert 1 < run["events_per_s"] <= 1e6 / run["p50_us"] * 2, "no more at once than one"


@pytest.mark.process
def test_clients_of_amqp_that_are_not_there_are_in_the_table(tmp_path: Path) -> None:
    done = run_bench(AMQP, "--quick", "--case", "JMS", path=str(tmp_path))

    assert done.returncode == 0, done.stderr
    for contender in ("penstock", "artemis", "rabbitmq"):
        assert (
            f"| {contender} | 0 | its client is compiled by javac: apt-get install" in done.stdout
        )


@pytest.mark.process
def test_a_peer_that_is_not_installed_is_in_the_table_with_the_reason(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(
        "S1", "--quick", "--peer", "redis", "--case", "128 B, batches of columns D1",
        "--json", str(kept), path=str(tmp_path),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "redis-server is not installed" in done.stdout
    ours, theirs = results_in(kept)["S1"].cells
    assert ours.runs
    assert not theirs.runs


@pytest.mark.process
def test_an_unknown_shape_is_refused_with_those_there_are() -> None:
    done = run_bench("S99")

    assert done.returncode == 2
    assert f"no shape S99; there are {', '.join(shapes())}" in done.stderr


@pytest.mark.process
def test_an_unknown_peer_is_refused_with_those_there_are() -> None:
    done = run_bench("S1", "--peer", "carrier-pigeon")

    assert done.returncode == 2
    assert (
        "no peer carrier-pigeon; there are amqtt, artemis, kafka, kafka-cluster, mosquitto, nats"
        in done.stderr
    )


@pytest.mark.slow
@pytest.mark.process
def test_another_checkout_takes_part_beside_this_one(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"

    done = run_bench(
        "S13", "--quick", "--peer", "penstock", "--before", str(ROOT), "--json", str(kept)
    )

    assert done.returncode == 0, done.stderr
    cells = results_in(kept)["S13"].cells
    assert {cell.contender for cell in cells} == {"penstock", "penstock, before"}
    assert all(run["first_ack_ms"] > 0 for cell in cells for run in cell.runs)
    assert all(cell.runs for cell in cells)


@pytest.mark.slow
@pytest.mark.process
def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = run_bench("S1", "--quick", "--before", str(tmp_path))

    assert done.returncode == 2
    assert f"{tmp_path} is not a checkout" in done.stderr


def test_every_shape_and_peer_is_found_under_its_name() -> None:
    assert list(shapes()) == [
        "C1",
        "S1",
        "S2",
        "S3",
        "S4",
        "S5",
        "S6",
        "S7",
        "S7M",
        "S8",
        "S9",
        "S10",
        "C11",
        "S11",
        "S12",
        "S12P",
        "S12T",
        "S13",
        "S14",
        "S15",
        "S16",
        "S17",
        "S18",
        "S19",
        "S20",
        "S21",
        "S22",
        "S22A",
        "S22L",
    ]
    assert set(peers()) == {
        "artemis",
        "kafka",
        "nats",
        "penstock",
        "postgres",
        "rabbitmq",
        "redis",
        "kafka-cluster",
        "nats-cluster",
        "penstock-cluster",
        "rabbitmq-cluster",
    }


@pytest.mark.process
def test_what_is_in_the_file_already_is_not_measured_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_bytes(msgspec.json.encode([result_of(cell("penstock", 200))]))
    before = kept.read_bytes()

    done = run_bench("S1", "--quick", "--resume", "--json", str(kept))

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert kept.read_bytes() == before


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.process
def test_a_run_of_everything_measures_is_resumed_and_is_no_page(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    wanted = ["--all", "--quick", "--peer", "nats", "--json", str(file)]

    done = run_bench("S11", *wanted, "--case", "sequential")
    assert done.returncode == 0, done.stderr
    again = run_bench("S11", "S13", *wanted, "--resume", "--case", "e")

    assert again.returncode == 0, again.stderr
    assert "S11 sequential D1" not in again.stderr, "it was measured by the first call"
    assert "S13 server process" in again.stderr
    stored = store.read(file)
    assert isinstance(stored, store.FullRun)
    assert stored.is_quick
    assert [result.shape for result in stored.results] == ["S11", "S13"]
    for result in stored.results:
        assert all(cell.missing or len(cell.runs) == len(cell.took_s) == 1 for cell in result.cells)
    assert run_bench("report", "--json", str(file)).returncode == 2


@pytest.mark.process
def test_the_plan_is_printed_without_a_run(tmp_path: Path) -> None:
    file = tmp_path / "all.json"

    done = run_bench("--all", "--plan", "--hours", "1", "--json", str(file))

    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    total = next(line for line in lines if line[:1] == ["total"])
    assert 30 < float(total[-1]) <= 60
    assert "To fit 1 hours:" in done.stdout
    assert not file.exists()


@pytest.mark.process
def test_options_that_do_not_go_together_are_refused() -> None:
    assert "add --all" in run_bench("S1", "--plan").stderr
    assert "leave out" in run_bench("--all", "--seconds", "1").stderr
    assert "--runs is 0" in run_bench("S1", "--runs", "0").stderr


@pytest.mark.process
def test_only_what_comes_as_archives_or_packages_is_installed() -> None:
    done = run_bench("install", "nats")

    assert done.returncode == 2
    assert "install one of kafka, artemis, qpid-jms, rumqttd, amqtt" in done.stderr


@pytest.mark.slow
def test_a_picture_has_a_bar_for_each_contender_and_its_name(tmp_path: Path) -> None:
    result = result_of(cell("penstock", 900, 500), cell("nats", 100), cell("redis", missing="no"))

    picture = draw(result, tmp_path)

    assert picture is not None
    text = picture.read_text()
    assert "penstock" in text
    assert "nats" in text
    assert "redis" not in text
    assert len(text) < 150_000
    assert draw(result, tmp_path) == picture
    assert picture.read_text() == text, "the same figures are the same bytes"


def test_nothing_to_show_makes_no_picture(tmp_path: Path) -> None:
    assert draw(result_of(cell("nats", missing="not installed")), tmp_path) is None


def result_of(*cells: Cell, higher_is_better: bool = True) -> Result:
    return Result(
        "S1",
        "a title",
        "events_per_s",
        higher_is_better=higher_is_better,
        machine="a machine",
        at="now",
        versions={},
        cells=list(cells),
    )


def cell(contender: str, *rates: float, missing: str = "") -> Cell:
    return Cell(
        "a case", "D1", contender, runs=[{"events_per_s": rate} for rate in rates], missing=missing
    )


def test_the_ratio_is_of_the_medians_and_above_one_when_penstock_is_better() -> None:
    table = markdown(result_of(cell("penstock", 900, 400, 500), cell("nats", 100, 50, 300)))

    assert "| a case | D1 | penstock | 3 | 500 ± 50% |  |" in table
    assert "| a case | D1 | nats | 3 | 100 ± 125% | 5.00 |" in table


def test_the_ratio_of_a_time_is_turned_round() -> None:
    table = markdown(result_of(cell("penstock", 200), cell("nats", 100), higher_is_better=False))

    assert "| nats | 1 | 100 | **0.50** |" in table


def test_a_contender_that_ran_in_no_case_has_its_first_reason() -> None:
    table = markdown(
        result_of(cell("nats", missing="not installed"), cell("nats", missing="has no keys"))
    )

    assert "| every case |  | nats | 0 | not installed |" in table


def test_a_missing_contender_has_its_reason_and_no_ratio() -> None:
    table = markdown(result_of(cell("penstock", 200), cell("nats", missing="not installed")))

    assert "| every case |  | nats | 0 | not installed |  |" in table
    assert "| a case | D1 | nats |" not in table


def test_tables_replace_what_is_between_their_marks() -> None:
    page = "before\n<!-- S1 -->\nold\n<!-- /S1 -->\nafter\n"

    written = between_marks(page, {"S1": "new\n"})

    assert written == "before\n<!-- S1 -->\nnew\n<!-- /S1 -->\nafter\n"
    assert between_marks(written, {"S1": "new\n"}) == written


def test_a_page_without_a_place_for_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for S1"):
        between_marks("nothing here", {"S1": "new\n"})
