"""Facts of a newer version are not damage: the realm does not serve without them (SEM S1)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner
from xxhash import xxh3_64_intdigest

import penstock
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import Damaged, NewerFormat
from penstock_server.bootstrap.directories import opened
from penstock_server.bootstrap.stopped import repair_store, verify_store
from penstock_server.cli.program import app
from penstock_server.runtime.store.records import FactRecord, decode_block, encode_block
from penstock_server.storage.disk import RealDisk

pytestmark = pytest.mark.spec("S1")

NEW_FACT = ["Teleported", [[0, 3]], "elsewhere"]
NEW_CAUSE = ["Removed", [[0, 1]], "teleported"]
PERSISTENT = {"type": "persistent", "kind": "channel"}
NEW_ATTRIBUTE = ["ChannelCreated", 2, "more", {**PERSISTENT, "storage": {"squeezing": "zstd"}}]
NEW_COMPRESSION = ["ChannelCreated", 2, "more", {**PERSISTENT, "storage": {"compression": "xz"}}]


def block(*facts: object, at_us: object = 0) -> bytes:
    header = msgspec.msgpack.encode([at_us, [[0, fact, []] for fact in facts]])
    return struct.pack("<I", len(header)) + header


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        session.channels.create("orders", type="persistent").publish(b"one")
    return tmp_path / "data"


async def _append(directory: Path, data: bytes) -> None:
    store = opened(str(directory), RealDisk())
    await store.journal.append(store.journal.info().tail, [data])
    await store.pages.close()
    await store.journal.close()


def in_the_journal(directory: Path, fact: object) -> None:
    asyncio.run(_append(directory, block(fact)))


def in_a_snapshot(directory: Path, fact: object) -> None:
    data = block(fact)
    checksum = xxh3_64_intdigest(data).to_bytes(8, "little")
    (directory / "snapshots").mkdir(exist_ok=True)
    (directory / f"snapshots/{999:020d}.snap").write_bytes(checksum + data)


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and str(path.relative_to(directory)) not in ("LOCK", "registry/journal")
    }  # these two record the process that has the directory open


@pytest.mark.parametrize("write", [in_the_journal, in_a_snapshot])
@pytest.mark.parametrize("fact", [NEW_FACT, NEW_CAUSE, NEW_ATTRIBUTE, NEW_COMPRESSION])
def test_a_realm_does_not_start_on_facts_of_a_newer_version(
    directory: Path, write: Callable[[Path, object], None], fact: list[Any]
) -> None:
    write(directory, fact)
    before = content(directory)

    with pytest.raises(NewerFormat, match=f"(journal|snapshot).* the fact {fact[0]}.*a newer one"):
        penstock.Realm(directory)
    assert content(directory) == before
    with pytest.raises(NewerFormat, match=fact[0]):  # the directory was released
        penstock.Realm(directory)


@pytest.mark.slow
@pytest.mark.parametrize("write", [in_the_journal, in_a_snapshot])
def test_facts_of_a_newer_version_do_not_count_as_damage(
    directory: Path, write: Callable[[Path, object], None]
) -> None:
    write(directory, NEW_FACT)
    before = content(directory)

    for look_after in (verify_store, repair_store):
        with pytest.raises(NewerFormat, match="Teleported"):
            asyncio.run(look_after(directory))
    for command in ("verify", "repair"):
        done = CliRunner().invoke(app, ["store", command, str(directory)])
        assert done.exit_code == 1
        assert "Teleported" in done.output
    assert content(directory) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        block(NEW_FACT)[:-6],
        block(NEW_FACT, at_us="noon")[:3],
        struct.pack("<I", 1) + b"\x05",
        block("no list"),
        block([7, "no name"]),
        block(7),
        struct.pack("<I", 4) + b"\x92\x00\x91\xc0",
        block(at_us="noon"),
    ],
)
def test_invalid_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(Damaged, match="cannot be decoded"):
        decode_block(memoryview(data))


def test_an_attribute_is_written_only_if_it_is_set() -> None:
    """A realm whose channels do not use a new attribute can still be read by older versions."""

    def written(storage: Storage) -> bytes:
        fact = ChannelCreated(1, "orders", Definition(type="persistent", storage=storage))
        return bytes(encode_block(0, [FactRecord(0, fact)], [])[0])

    assert b"compression" not in written(Storage(compression="none"))
    assert b"compression" in written(Storage(compression="zstd"))
