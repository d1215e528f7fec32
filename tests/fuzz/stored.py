"""Whole directories of a realm or a table, with one changed file."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import penstock
from penstock.tables.table import Table
from penstock_core.vocabulary.errors import Corrupt, InvalidArgument, PenstockError
from penstock_server.bootstrap.stopped import verify_store
from penstock_server.storage.embedded.frames import BLOCK_HEADER_SIZE, read_file_header, scan

QUICK: Final = {
    "storage__seal_interval_ms": 10,
    "storage__segment_bytes": 4_096,
    "storage__journal_bytes": 1 << 20,
}


@lru_cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def toml(data: bytes) -> Mapping[str, Any]:
    """Read a document; raise ``InvalidArgument`` if it is not TOML."""
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"this is not TOML: {error}") from error


def _files(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if path.name != "LOCK"]


def _seed(folder: Path, path: Path) -> bytes:
    """Return a file's name, a line break, and its content without unused room at the end."""
    name = str(path.relative_to(folder)).encode()
    return name + b"\n" + path.read_bytes().rstrip(b"\0")


def _damaged_copy(folder: Path, data: bytes) -> Path:
    """Return a copy of a directory in which ``data`` replaces one file; an unchanged copy if it
    names no file."""
    copy = _scratch() / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    name, _, content = data.partition(b"\n")
    for path in _files(copy):
        if str(path.relative_to(copy)).encode() == name:
            path.write_bytes(content)
    return copy


# --- realms ------------------------------------------------------------------------------


@lru_cache
def _realm() -> Path:
    """Return a directory with sealed events, a snapshot, pages and durables."""
    folder = _scratch() / "realm"
    with penstock.Realm(folder, **QUICK) as realm, realm.connect() as session:
        orders = session.channels.create("orders", storage={"events_per_spindle": 50})
        orders.publish_table(pa.table({"n": range(100)}))
        orders.durables.create("team").fetch(3)[0].ack()
        grown = session.channels.create("grown", storage={"events_per_spindle": 0})
        grown.publish_table(pa.table({"n": range(60)}))
        latest = session.channels.create("latest", engine="merge", keys={"k": 1})
        latest.register("a", {"n": 1})
        latest.update("a", n=2)
        session.channels.create("paged", type="paged").publish(b"in a page")
        while orders.info().storage.tail_bytes:
            pass
        rest = session.channels.create("rest")
        rest.publish_many([penstock.Event(b"x" * 2_000)] * 700)
        while not list(folder.glob("snapshots/*")):
            pass
    with penstock.Realm(folder, **QUICK) as realm, realm.connect() as session:
        session.channels.get("rest").purge()
        session.channels.get("grown").publish(b"in the journal")
    for path in folder.glob("journal/*.log"):  # without the unused room, so that copies are small
        path.write_bytes(path.read_bytes().rstrip(b"\0"))
    return folder


def directories() -> Sequence[bytes]:
    return [_seed(_realm(), path) for path in _files(_realm())]


def open_directory(data: bytes) -> None:
    """Open a realm: it serves its events, or refuses with a reason. ``verify`` reads the directory,
    too."""
    folder = _damaged_copy(_realm(), data)
    with suppress(PenstockError):
        asyncio.run(verify_store(folder))
    with ExitStack() as stack:
        try:
            realm = stack.enter_context(penstock.Realm(folder, **QUICK))
        except (Corrupt, InvalidArgument):
            return
        session = stack.enter_context(realm.connect())
        for name in session.channels.list():
            channel = session.channels.get(name)
            for batch in channel.browse().batches():
                assert len(batch)
            assert channel.info().counters.published >= 0


@lru_cache
def blocks() -> tuple[bytes, ...]:
    """The insides of journal blocks, some of each sort."""
    contents: dict[int, bytes] = {}
    for path in _realm().glob("journal/*.log"):
        data = path.read_bytes()
        header = read_file_header(data)
        assert header is not None, "it is whole"
        for block in scan(data, header.identity, header.first).pieces:
            assert block.header is not None, "it is whole"
            body = block.start + BLOCK_HEADER_SIZE
            contents[block.header.length] = data[body : body + block.header.length]
    return tuple(content for size, content in sorted(contents.items()) if size < 50_000)


@lru_cache
def snapshots() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(_realm().glob("snapshots/*")))


# --- tables ------------------------------------------------------------------------------


@lru_cache
def _table() -> Path:
    folder = _scratch() / "table"
    table = Table.open(str(folder), "parquet", ("day",))
    for version in range(12):
        rows = {"n": [version, version + 1], "day": ["a", "b"]}
        table.append(pa.table(rows), app="w", version=version)
    return folder


def tables() -> Sequence[bytes]:
    files = [path for path in _files(_table()) if path.suffix != ".parquet"]
    return [_seed(_table(), path) for path in files]


def read_table(data: bytes) -> None:
    """Read the commits of a Parquet table, as an archive has one."""
    folder = _damaged_copy(_table(), data)
    try:
        table = Table.open(str(folder), "parquet")
        if table.exists:
            assert table.schema is not None
            list(table.files())
    except (Corrupt, InvalidArgument):
        return
