"""Sealed files read from a copy of the realm's data directory, as on an object store."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import penstock
from packages.spark.tests.reading import Row, rows_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.files.segments import SegmentBatch
from penstock_core.vocabulary.errors import Damaged, InvalidArgument
from penstock_spark.options import source_options
from penstock_spark.reading.copies import (
    GAP_BYTES,
    RANGE_BYTES,
    RANGES_IN_FLIGHT,
    Copy,
    Range,
    copy_at,
    ranges,
)
from penstock_spark.reading.plan import EventRange, FileRows, WireRows
from penstock_spark.source import PenstockSource
from tests.objects import ObjectStore, object_store

pytestmark = pytest.mark.slow

Sealed = Callable[[Channel, int], None]
FILES, PER_FILE, TAIL = 5, 1_000, 300
LAST = FILES * PER_FILE + TAIL


def events(first: int, end: int) -> list[penstock.Event]:
    return [
        penstock.Event(b"%d" % i, properties={"n": i, "seventh": i % 7}) for i in range(first, end)
    ]


@pytest.fixture(params=["none", "zstd"])
def orders(client: Session, sealed: Sealed, request: pytest.FixtureRequest) -> Channel:
    """Five files, and some events in none."""
    channel = client.channels.create(
        "orders",
        type="persistent",
        storage={"events_per_spindle": PER_FILE, "compression": request.param},
    )
    channel.publish_many(events(0, LAST))
    sealed(channel, FILES)
    return channel


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def names(store: ObjectStore, orders: Channel, tmp_path: Path) -> list[str]:
    """The objects of a store that has all files, in the order of their events."""
    for path in sorted((tmp_path / "realm").glob("segments/**/*.arrow")):
        store.objects[f"bucket/copy/{path.relative_to(tmp_path / 'realm')}"] = path.read_bytes()
    return sorted(store.objects)


def read(url: str, **options: str) -> list[Row]:
    data_source = PenstockSource({"url": url, "channel": "orders", **options})
    reader = data_source.reader(data_source.schema())
    return rows_of(reader, reader.partitions())


def numbers(rows: list[Row]) -> list[int]:
    return [row["n"] for row in rows]


def origin_lines(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about the origin of events."""
    return [record.getMessage() for record in log.records if record.name == "penstock.spark"]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock.spark")
    return caplog


@pytest.mark.parametrize("access", ["auto", "local"])
def test_all_files_are_read_from_the_copy_and_the_tail_over_the_wire(
    url: str, store: ObjectStore, names: list[str], log: pytest.LogCaptureFixture, access: str
) -> None:
    rows = read(url, files=store.uri("bucket/copy"), access=access, includeHeaders="true")

    assert numbers(rows) == list(range(LAST))
    assert rows == read(url, access="remote", includeHeaders="true")
    (line,) = origin_lines(log)
    assert line == (
        f"channel orders, events 0-{LAST - 1}: 5000 of Copy('s3://***@bucket/copy'), "
        "0 over the wire, 300 not sealed"
    )
    assert [record.levelname for record in log.records if record.name == "penstock.spark"] == [
        "INFO"
    ]


def test_a_file_is_asked_for_once_and_its_neighbouring_batches_together(
    url: str, store: ObjectStore, names: list[str]
) -> None:
    store.requests.clear()
    read(url, files=store.uri("bucket/copy"))

    assert [name for name, _ in store.requests_of("HEAD", "segments/")] == names
    assert [name for name, _ in store.requests_of("GET", "segments/")] == names, "a range of each"


def test_what_the_copy_lacks_comes_over_the_wire_once(
    url: str, store: ObjectStore, names: list[str], log: pytest.LogCaptureFixture
) -> None:
    missing, stale, rotten, *_ = names
    del store.objects[missing]
    store.objects[stale] = store.objects[stale][:-1]
    damaged = bytearray(store.objects[rotten])
    damaged[len(damaged) // 2] ^= 0xFF
    store.objects[rotten] = bytes(damaged)
    uri = store.uri("bucket/copy")

    assert numbers(read(url, files=uri)) == list(range(LAST))
    (line,) = origin_lines(log)
    assert "2000 of Copy" in line
    assert "3000 over the wire, 300 not sealed; s3://***@bucket/copy has no segments/" in line
    assert [record.levelname for record in log.records if record.name == "penstock.spark"] == [
        "WARNING"
    ]
    log.clear()
    assert numbers(read(url, files=uri, selector="n < 2500")) == list(range(2_500))
    assert [record.levelname for record in log.records if record.name == "penstock.spark"] == [
        "INFO"
    ], "it is a warning once"


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda content: None, r"copy has no segments/orders\..*with the option files"),
        (lambda content: content[:-1], r"s3://\*\*\*@bucket/copy has \d+ bytes of \d+"),
        (
            lambda content: content[: len(content) // 2].ljust(len(content), b"\xff"),
            r"in Copy\('s3://\*\*\*@bucket/copy'\): events 0-999: .* fail their checksum",
        ),
    ],
)
def test_what_the_copy_lacks_is_an_error_where_nothing_else_is_allowed(
    url: str,
    store: ObjectStore,
    names: list[str],
    harm: Callable[[bytes], bytes | None],
    says: str,
) -> None:
    harmed = harm(store.objects.pop(names[0]))
    if harmed is not None:
        store.objects[names[0]] = harmed

    with pytest.raises((InvalidArgument, Damaged), match=says):
        read(url, files=store.uri("bucket/copy"), access="local")


def test_removed_events_are_not_read_from_the_copy(
    url: str, orders: Channel, store: ObjectStore, names: list[str]
) -> None:
    orders.purge(selector="seventh = 0 AND n < 4000")
    kept = [n for n in range(LAST) if n % 7 or n >= 4_000]

    assert numbers(read(url, files=store.uri("bucket/copy"), minPartitions="4")) == kept


def test_a_file_is_read_from_the_copy_as_soon_as_that_has_all_of_it(
    url: str, store: ObjectStore, names: list[str], log: pytest.LogCaptureFixture
) -> None:
    content = store.objects[names[4]]
    store.objects[names[4]] = content[: len(content) // 2]
    assert numbers(read(url, files=store.uri("bucket/copy"))) == list(range(LAST))
    store.objects[names[4]] = content + b"it has grown since"
    assert numbers(read(url, files=store.uri("bucket/copy"))) == list(range(LAST))

    assert ["4000 of" in line and "1000 over the wire" in line for line in origin_lines(log)] == [
        True,
        False,
    ]
    assert "5000 of" in origin_lines(log)[1]


# --- stores that fail ---------------------------------------------------------------------


def test_a_store_that_refuses_is_asked_once_and_told_without_secrets(
    url: str, store: ObjectStore, names: list[str], log: pytest.LogCaptureFixture
) -> None:
    store.refuses = True
    store.requests.clear()
    uri = store.uri("bucket/copy")

    assert numbers(read(url, files=uri, minPartitions="3")) == list(range(LAST))
    assert len(store.requests_of("HEAD", "segments/")) == 1
    lines = origin_lines(log)
    assert "0 of Copy" in lines[0]
    assert "option files: segments/orders." in lines[0]
    assert "ACCESS_DENIED" in lines[0]
    assert not any("very-secret" in line for line in lines)
    with pytest.raises(InvalidArgument, match=r"option files: .* ACCESS_DENIED") as raised:
        read(url, files=uri, access="local")
    assert "very-secret" not in str(raised.value)


def test_nobody_waits_long_for_a_store_that_does_not_answer(
    url: str, orders: Channel, log: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1%3A{silent.getsockname()[1]}"
        uri = f"s3://a:b@bucket/copy?endpoint_override={address}&scheme=http&region=x"
        copy_at(uri).answer_s = 0.2

        assert numbers(read(url, files=uri, minPartitions="3")) == list(range(LAST))
        assert "no answer within 0.2 s" in origin_lines(log)[0]
        with pytest.raises(InvalidArgument, match=r"option files: .*no answer within 0\.2 s"):
            read(url, files=uri, access="local")


def test_a_store_that_failed_is_asked_again_later(
    url: str, store: ObjectStore, names: list[str]
) -> None:
    uri = store.uri("bucket/copy")
    copy_at(uri).pause_s = 0.0
    store.refuses = True
    assert numbers(read(url, files=uri)) == list(range(LAST))
    store.refuses = False

    assert numbers(read(url, files=uri, access="local")) == list(range(LAST))


def test_a_file_system_nobody_knows_is_named(url: str, orders: Channel) -> None:
    assert numbers(read(url, files="ftp://host/copy")) == list(range(LAST))
    with pytest.raises(InvalidArgument, match=r"option files ftp://host/copy cannot be used"):
        read(url, files="ftp://host/copy", access="local")


def test_a_realm_that_does_not_name_its_files_is_asked_for_events(
    url: str, store: ObjectStore, names: list[str]
) -> None:
    data_source = PenstockSource(
        {"url": url, "channel": "orders", "files": store.uri("bucket/copy")}
    )
    reader = data_source.reader(data_source.schema())
    (part,) = reader.partitions()
    assert isinstance(part, EventRange)
    older = tuple(_nameless(named_part) for named_part in part.parts)

    assert numbers(rows_of(reader, [dataclasses.replace(part, parts=older)])) == list(range(LAST))


def _nameless(part: FileRows | WireRows) -> FileRows | WireRows:
    return msgspec.structs.replace(part, name="") if isinstance(part, FileRows) else part


# --- ranges -------------------------------------------------------------------------------


def batches(*spans: tuple[int, int]) -> list[SegmentBatch]:
    return [
        SegmentBatch(
            number, number + 1, 1, offset=offset, length=end - offset, checksum=0, summary=b""
        )
        for number, (offset, end) in enumerate(spans)
    ]


def test_neighbours_are_read_together_up_to_a_size_and_over_small_holes() -> None:
    far = 100 + GAP_BYTES
    assert list(ranges([])) == []
    assert list(ranges(batches((8, 50), (50, 100), (far, far + 5)))) == [Range(8, far - 3, 3)]
    assert list(ranges(batches((8, 100), (far + 1, far + 5)))) == [
        Range(8, 92, 1),
        Range(far + 1, 4, 1),
    ]
    half = RANGE_BYTES // 2
    thirds = batches((0, half), (half, 2 * half), (2 * half, 3 * half))
    assert list(ranges(thirds)) == [Range(0, 2 * half, 2), Range(2 * half, half, 1)]
    assert list(ranges(batches((0, 9 * half)))) == [Range(0, 9 * half, 1)]


def test_some_ranges_are_read_ahead_and_no_more() -> None:
    class File:
        def __init__(self) -> None:
            self.read_offsets: list[int] = []

        def read_at(self, length: int, offset: int) -> bytes:
            self.read_offsets.append(offset)
            return bytes(length)

    file = File()
    size = RANGE_BYTES
    places = batches(*[(size * n, size * (n + 1)) for n in range(RANGES_IN_FLIGHT + 3)])
    batches_read = Copy("/copy").messages(file, "name", places)

    assert next(batches_read).size == size
    assert sorted(file.read_offsets) == [size * n for n in range(RANGES_IN_FLIGHT)]
    assert next(batches_read).size == size
    assert sum(1 for _ in batches_read) == RANGES_IN_FLIGHT + 1
    assert sorted(file.read_offsets) == [size * n for n in range(RANGES_IN_FLIGHT + 3)]


def test_a_file_that_ends_early_is_an_error_and_not_a_short_batch() -> None:
    class Cut:
        def read_at(self, length: int, offset: int) -> bytes:
            return bytes(length - 1)

    with pytest.raises(OSError, match="option files: name at /copy ends within bytes 8-100"):
        list(Copy("/copy").messages(Cut(), "name", batches((8, 100))))


# --- the option ---------------------------------------------------------------------------


def test_files_is_a_uri_and_is_not_shown() -> None:
    all_options = {"url": "penstock://h", "channel": "orders"}
    secret = "s3://who:secret@bucket/copy?region=eu"
    options = source_options({**all_options, "files": secret})

    assert options.files == secret
    assert "secret" not in repr(options)
    assert "secret" not in repr(copy_at(secret))
    assert source_options(all_options).files == ""
    with pytest.raises(InvalidArgument, match=r"files is 'copy'; give a URI such as s3://bucket"):
        source_options({**all_options, "files": "copy"})
    with pytest.raises(InvalidArgument, match="leave out one of the two"):
        source_options({**all_options, "files": secret, "access": "remote"})


def test_a_file_is_read_though_it_is_a_hundredth_of_its_events(
    url: str, client: Session, sealed: Sealed
) -> None:
    storage: penstock.StorageProperties = {"events_per_spindle": 100, "compression": "zstd"}
    orders = client.channels.create("orders", type="persistent", storage=storage)
    alike = b"\0" * 20_000
    orders.publish_many([penstock.Event(alike, properties={"n": n}) for n in range(100)])
    sealed(orders, 1)

    assert orders.info().storage.sealed_bytes < 100 * len(alike) / 100
    rows = read(url, access="local")

    assert numbers(rows) == list(range(100))
    assert {row["data"] for row in rows} == {alike}
