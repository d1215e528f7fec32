"""Whatever file is damaged: found, named, set aside; the rest is sound (SEM S1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import DataDirectoryInUse, InvalidArgument
from penstock_server.bootstrap.stopped import repair_store, verify_store
from penstock_server.cli.program import app
from penstock_server.runtime.upkeep.repair import Repaired
from penstock_server.runtime.upkeep.verification import StoreReport

ROWS = 1_000
QUICK = {"storage__seal_interval_ms": 1, "storage__sweep_interval_ms": 1}

pytestmark = [pytest.mark.spec("S1"), pytest.mark.slow]


@pytest.fixture(params=["none", "zstd"])
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Spindles, a single file, a durable, and events that are in the journal only."""
    path = tmp_path / "data"
    settings = {**QUICK, "storage__segment_bytes": 4_096}
    with penstock.Realm(path, **settings) as realm, realm.connect() as session:
        spindles = session.channels.create(
            "spindles", storage={"events_per_spindle": ROWS, "compression": request.param}
        )
        spindles.publish_table(pa.table({"n": range(3 * ROWS)}))
        spindles.durables.create("team")
        single = session.channels.create(
            "single", storage={"events_per_spindle": 0, "compression": request.param}
        )
        for first in range(0, 3 * ROWS, ROWS):
            single.publish_table(pa.table({"n": range(first, first + ROWS)}))
        for channel in (spindles, single):
            while channel.info().storage.tail_bytes:
                pass
        paged = session.channels.create("paged", type="paged")
        paged.publish(b"in a page")
        rest = session.channels.create("rest")
        for number in range(10):
            rest.publish(b"%d" % number)
    return path


def verify(directory: Path) -> StoreReport:
    return asyncio.run(verify_store(directory))


def repair(directory: Path) -> Repaired:
    return asyncio.run(repair_store(directory))


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def files(directory: Path, pattern: str) -> list[Path]:
    return sorted(directory.glob(pattern))


def spindle(directory: Path) -> Path:
    return files(directory, "segments/spindles.*/*.arrow")[1]


def single(directory: Path) -> Path:
    (path,) = files(directory, "segments/single.*/*.arrow")
    return path


def journal(directory: Path) -> Path:
    return files(directory, "journal/*.log")[-1]


def middle_of(find: Callable[[Path], Path]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = find(directory)
        flip(path, path.stat().st_size // 2)

    return damage


def flip_byte(find: Callable[[Path], Path], place: int) -> Callable[[Path], None]:
    return lambda directory: flip(find(directory), place)


def shortened(find: Callable[[Path], Path], by: int) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = find(directory)
        path.write_bytes(path.read_bytes()[:-by])

    return damage


def deleting(find: Callable[[Path], Path]) -> Callable[[Path], None]:
    return lambda directory: find(directory).unlink()


def record(name: str) -> Callable[[Path], Path]:
    return lambda directory: directory / "registry" / name


def event_in_journal(directory: Path) -> None:
    path = journal(directory)
    flip(path, path.read_bytes().rindex(b"rest") + 200)


def page(directory: Path) -> Path:
    (path,) = files(directory, "pages/*/*.page")
    return path


def event_in_page(directory: Path) -> None:
    flip(page(directory), page(directory).read_bytes().index(b"in a page"))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a batch of a spindle": middle_of(spindle),
    "the header of a spindle": flip_byte(spindle, 20),
    "the footer of a spindle": flip_byte(spindle, -30),
    "a spindle cut short": shortened(spindle, 4_000),
    "a spindle that is gone": deleting(spindle),
    "a batch of a single file": middle_of(single),
    "the header of a single file": flip_byte(single, 20),
    "the footer of a single file": flip_byte(single, -30),
    "a single file cut short": shortened(single, 12_000),
    "a page": event_in_page,
    "a page that is gone": deleting(page),
    "a block of the journal": event_in_journal,
    "the start of the journal": flip_byte(journal, 100),
    "the identity": flip_byte(record("identity"), -1),
    "the format": flip_byte(record("format"), -1),
    "the journal's record": flip_byte(record("journal"), -1),
}


def test_a_sound_directory_is_sound_and_stays_as_it_is(directory: Path) -> None:
    before = content(directory)
    report = verify(directory)

    assert report.findings == []
    assert report.events == 6 * ROWS + 11
    assert (report.files >= 4, report.blocks >= 10, report.records) == (True, True, 3)
    assert content(directory) == before
    assert repair(directory).is_sound
    assert content(directory) == before


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_found_and_repaired_and_the_rest_is_sound(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    damage(directory)
    before = content(directory)

    report = verify(directory)
    assert report.findings, "it is found"
    assert all(finding.reason for finding in report.findings)
    assert content(directory) == before, "looking is not a change"

    repaired = repair(directory)
    assert len(repaired.findings) >= len(report.findings)
    assert not any("copied" in finding.reason for finding in report.findings), "nothing was"
    after = verify(directory)
    assert after.findings == []
    assert set(repaired.kept) <= set(after.quarantined)
    sound = content(directory)
    assert repair(directory).is_sound
    assert content(directory) == sound, "a second repair finds nothing to do"
    for path in directory.glob("segments/**/*.arrow"):
        pa.ipc.open_file(path).read_all()

    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        assert realm.running.recovered.damage == []
        infos = [session.channels.get(name).info() for name in session.channels.list()]
        assert repaired.events == sum(info.counters.quarantined for info in infos)
        for name in session.channels.list():
            channel = session.channels.get(name)
            info = channel.info()
            ids = [event.event_id for event in channel.browse()]
            assert len(ids) == info.events
            assert info.counters.published == info.events + info.counters.departed_count
            assert not info.storage.quarantined
    assert verify(directory).findings == []


def test_a_damaged_batch_costs_its_own_events_and_no_durable_waits_for_them(
    directory: Path,
) -> None:
    middle_of(spindle)(directory)
    (finding,) = verify(directory).findings
    assert (finding.channel, finding.events) == ("spindles", (Span(ROWS, 2 * ROWS),))
    assert finding.first_byte is not None
    assert finding.end_byte is not None
    hurt = spindle(directory).read_bytes()[finding.first_byte : finding.end_byte]

    repaired = repair(directory)

    assert repaired.events == ROWS
    kept = [(directory / "quarantine" / name).read_bytes() for name in repaired.kept]
    assert hurt in kept
    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        spindles = session.channels.get("spindles")
        assert spindles.info().counters.quarantined == ROWS
        assert spindles.durables.get("team").info().outstanding == 2 * ROWS


def test_a_channel_whose_creation_is_lost_is_set_aside_whole(directory: Path) -> None:
    path = journal(directory)
    before = content(directory)
    flip(path, path.read_bytes().index(b"ChannelCreated"))

    repaired = repair(directory)

    kept = {(directory / "quarantine" / name).read_bytes() for name in repaired.kept}
    segments = [data for name, data in before.items() if name.startswith("segments/spindles")]
    assert set(segments) <= kept
    assert verify(directory).findings == []


@pytest.mark.parametrize("which", ["one", "both"])
def test_a_damaged_snapshot_is_set_aside(directory: Path, which: str) -> None:
    """The directory has two snapshots: if only one of them is damaged, no event is missing."""
    settings = {**QUICK, "storage__journal_bytes": 1 << 20}
    with penstock.Realm(directory, **settings) as realm, realm.connect() as session:
        rest = session.channels.get("rest")
        rest.publish_many([penstock.Event(b"x" * 1_000)] * 2_000)
        while len(list((directory / "snapshots").glob("*"))) < 2:
            pass
        rest.publish(b"last")  # so that the journal is cut now, or as the realm is closed
        names = session.channels.list()
    copy, first = files(directory, "snapshots/*")[-2:]
    assert copy.read_bytes() == first.read_bytes()
    for snapshot in (first,) if which == "one" else (first, copy):
        flip(snapshot, snapshot.stat().st_size // 2)
    hurt = first.read_bytes()

    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        assert any(first.name in reason for reason in realm.running.recovered.damage)
        assert (session.channels.list() == names) is (which == "one")
        if which == "one":
            assert session.channels.get("rest").info().events == 2_011
    assert any("snapshots/" in finding.file for finding in verify(directory).findings)
    repaired = repair(directory)

    assert hurt in {(directory / "quarantine" / name).read_bytes() for name in repaired.kept}
    assert verify(directory).findings == []
    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        assert realm.running.recovered.damage == []
        assert (session.channels.list() == names) is (which == "one")


def test_the_commands_say_what_they_found(directory: Path) -> None:
    run = CliRunner().invoke
    assert run(app, ["store", "verify", str(directory)]).exit_code == 0
    middle_of(spindle)(directory)

    verified = run(app, ["store", "verify", str(directory)])
    assert verified.exit_code == 1
    assert "fail their checksum (1000 events of spindles)" in verified.output
    listed = run(app, ["store", "verify", str(directory), "--format", "json"])
    assert json.loads(listed.stdout)["findings"][0]["channel"] == "spindles"
    done = run(app, ["store", "repair", str(directory)])
    assert done.exit_code == 0
    assert "1000 events could not be read" in done.output
    assert "`penstock store repair" in verified.output
    assert run(app, ["store", "verify", str(directory)]).exit_code == 0
    assert "no damage" in run(app, ["store", "repair", str(directory)]).output


def test_a_directory_in_use_or_of_somebody_else_is_left_alone(
    directory: Path, tmp_path: Path
) -> None:
    with penstock.Realm(directory), pytest.raises(DataDirectoryInUse):
        verify(directory)
    with penstock.Realm(directory), pytest.raises(DataDirectoryInUse):
        repair(directory)
    with pytest.raises(InvalidArgument, match="not a Penstock data directory"):
        verify(tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        repair(tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
