"""Exports and imports that are refused leave nothing behind (SEM C7)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import penstock
from packages.server.tests.transfers.moving import (
    Start,
    ask,
    events,
    exported,
    files_in,
    forge,
    read,
    refusal,
)
from penstock.client.handles.attributes import Engine
from penstock.client.sync.sync import Session
from penstock_core.api.transfers import (
    AbortImport,
    BeginExport,
    BeginImport,
    CommitImport,
    ExportBegun,
    PutImport,
)
from penstock_core.columns.files.exports import MANIFEST, STATE, manifest_from
from penstock_core.vocabulary.errors import (
    DamagedExport,
    InvalidArgument,
    InvalidDescriptor,
    MemoryLimit,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_core.wire.native import messages as wire
from penstock_testing.peers import RawPeer
from tests.patience import until
from tests.protocols import a_chain, shop

pytestmark = [pytest.mark.spec("C7"), pytest.mark.slow]


def test_an_import_into_a_taken_name_is_refused_and_changes_nothing(
    source_session: Session, target_session: Session, folder: Path, tmp_path: Path
) -> None:
    source_session.channels.create("orders", type="persistent").publish_many(events(5))
    source_session.channels.export("orders", folder)
    first = target_session.channels.import_from(folder)
    stored = files_in(tmp_path / "there")

    with pytest.raises(NameAlreadyBound, match="orders already exists"):
        target_session.channels.import_from(folder)
    with pytest.raises(penstock.PenstockError, match="is a wildcard"):
        target_session.channels.import_from(folder, "orders/*")
    assert first.info().events == 5
    assert files_in(tmp_path / "there") == stored


def test_a_dead_event_store_has_to_be_there_first(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    source_session.channels.create("dead")
    source_session.channels.create("orders", dead_event_store="dead").publish(b"")
    source_session.channels.export("orders", folder)

    with pytest.raises(NameDoesNotExist, match="dead event store dead does not exist"):
        target_session.channels.import_from(folder)
    target_session.queues.create("dead")
    assert target_session.channels.import_from(folder).info().definition.dead_event_store == "dead"


@pytest.mark.spec("P4")
def test_types_of_messages_that_nest_too_deep_are_refused(
    source_session: Session, folder: Path
) -> None:
    """The decoder of columns would recurse over them in native code."""
    source_session.channels.create("orders", descriptors=shop())
    source_session.channels.export("orders", folder)
    manifest, state = read(folder)
    deep = msgspec.structs.replace(manifest.definition, descriptors=a_chain(9_000))
    restored = msgspec.structs.replace(state.channel.restored, definition=deep)
    channel = msgspec.structs.replace(state.channel, restored=restored)
    forged = msgspec.structs.replace(manifest, definition=deep)
    forge(folder, forged, msgspec.structs.replace(state, channel=channel))

    with pytest.raises(InvalidDescriptor, match="more than 100 levels"):
        source_session.channels.import_from(folder, "copy")
    assert source_session.channels.list() == ["orders"]


def test_a_queue_is_not_imported_as_a_channel(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    source_session.queues.create("work").push(b"")
    with pytest.raises(NameDoesNotExist, match="work is a queue"):
        source_session.channels.export("work", folder)
    source_session.queues.export("work", folder)

    with pytest.raises(InvalidArgument, match="import it as a queue"):
        target_session.channels.import_from(folder)


def test_an_export_needs_a_folder_of_its_own(source_session: Session, folder: Path) -> None:
    source_session.channels.create("orders").publish(b"")
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")

    with pytest.raises(InvalidArgument, match="not empty"):
        source_session.channels.export("orders", folder)
    with pytest.raises(InvalidArgument, match="cannot be used"):
        source_session.channels.export("orders", folder / "letter.txt" / "inside")
    assert (folder / "letter.txt").read_text() == "mine"


def test_an_export_of_nothing_leaves_nothing(source_session: Session, folder: Path) -> None:
    with pytest.raises(NameDoesNotExist):
        source_session.channels.export("orders", folder)
    assert not folder.exists()
    folder.mkdir()
    with pytest.raises(NameDoesNotExist):
        source_session.channels.export("orders", folder)
    assert list(folder.iterdir()) == []


def test_an_incomplete_export_is_refused(
    start: Start, target_session: Session, folder: Path, tmp_path: Path
) -> None:
    source_session = start("cut").connect()
    source_session.channels.create("orders", type="persistent").publish_many(events(5))
    source_session.channels.export("orders", folder)
    (folder / MANIFEST).unlink()  # it comes last

    with pytest.raises(DamagedExport, match="it is incomplete"):
        target_session.channels.import_from(folder)
    with pytest.raises(InvalidArgument, match="does not exist; give the folder of an export"):
        target_session.channels.import_from(tmp_path / "nowhere")
    source_session.close()


@pytest.mark.parametrize("engine", ["default", "merge"])
def test_publish_keys_and_states_need_free_memory(
    source_session: Session, start: Start, folder: Path, engine: Engine
) -> None:
    states = source_session.channels.create("states", keys={"key": 1}, engine=engine)
    for count in range(10):
        states.publish(b"", properties={"key": f"{count}" + "x" * 10_000})
    source_session.channels.export("states", folder)
    with start("small", limits__index_bytes=100_000).connect() as small:
        with pytest.raises(MemoryLimit, match=r"states has [12].*limits\.index_bytes"):
            small.channels.import_from(folder)
        assert small.channels.list() == []
        small.channels.create("states", keys={"key": 1}).publish(b"", properties={"key": 1})
    source_session.close()


def test_events_in_memory_need_free_memory(
    source_session: Session, start: Start, folder: Path
) -> None:
    orders = source_session.channels.create("orders", type="reliable")
    orders.publish(b"x" * 100_000)
    source_session.channels.export("orders", folder)
    with start("small", limits__memory_bytes=50_000).connect() as small:
        with pytest.raises(MemoryLimit, match="orders has 1"):
            small.channels.import_from(folder)
        assert small.channels.list() == []


# --- damage -------------------------------------------------------------------------------


def test_damage_to_any_file_is_noticed_and_leaves_no_files(
    source_session: Session, target_session: Session, folder: Path, tmp_path: Path
) -> None:
    files = exported(source_session, folder)
    assert len(files) >= 4
    for path in files:
        content = path.read_bytes()
        places = [0, len(content) // 3, len(content) // 2, len(content) - 1]
        flipped = [
            content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]
            for position in places
        ]
        for damaged in (*flipped, content[:-1], content + b"\0", b""):
            path.write_bytes(damaged)
            with pytest.raises(DamagedExport):
                target_session.channels.import_from(folder)
        path.unlink()
        with pytest.raises(DamagedExport, match=path.name):
            target_session.channels.import_from(folder)
        path.write_bytes(content)
    (folder / "events" / "more.arrow").write_bytes(b"")
    with pytest.raises(DamagedExport, match=r"events/more\.arrow is not part of the export"):
        target_session.channels.import_from(folder)
    (folder / "events" / "more.arrow").unlink()

    assert target_session.channels.list() == []
    assert files_in(tmp_path / "there") == []
    assert (
        target_session.channels.import_from(folder).info().events
        == source_session.channels.get("orders").info().events
    )


def test_the_realm_checks_an_import_itself(
    source_session: Session, start: Start, folder: Path, tmp_path: Path
) -> None:
    """An export with forged checksums is refused as well."""
    exported(source_session, folder)
    manifest, state = read(folder)
    counters = msgspec.structs.replace(state.channel.restored.counters, published=3)
    restored = msgspec.structs.replace(state.channel.restored, counters=counters)
    channel = msgspec.structs.replace(state.channel, restored=restored)
    forge(folder, manifest, msgspec.structs.replace(state, channel=channel))
    with start("there").connect() as target:
        with pytest.raises(DamagedExport, match="3 published"):
            target.channels.import_from(folder)

        assert target.channels.list() == []
        assert files_in(tmp_path / "there") == []


def test_the_realm_refuses_all_that_the_client_would_refuse(
    source_session: Session, start: Start, folder: Path, tmp_path: Path
) -> None:
    exported(source_session, folder)
    manifest = manifest_from((folder / MANIFEST).read_bytes())
    target = start("there")
    contents = [(folder / file.name).read_bytes() for file in manifest.files]
    state = (folder / STATE).read_bytes()
    last = len(contents)
    with RawPeer(target.listen()) as peer:
        peer.greet()

        def attempt(*parts: tuple[int, int, bytes]) -> str:
            """Why an import with these parts is refused."""
            import_id = ask(peer, BeginImport("orders", manifest.encoded()), str)
            for number, (file, offset, content) in enumerate(parts, start=2):
                peer.say(wire.Asked(number, PutImport(import_id, file, offset)), content)
                (answer,) = peer.hear_until(number)
                if isinstance(answer, wire.Failed):
                    return answer.text
            return refusal(peer, CommitImport(import_id)).text

        last_file = (last, 0, state)
        flipped = bytes([contents[0][0] ^ 1]) + contents[0][1:]
        assert "was expected" in attempt((0, 0, contents[0]))
        assert "was expected" in attempt(last_file, (1, 0, contents[1]))
        assert "was expected" in attempt(last_file, (0, 5, contents[0]))
        assert "more than" in attempt((last, 0, state + b"x"))
        assert "fails its checksum" in attempt((last, 0, state[:-1] + b"x"))
        assert "fails its checksum" in attempt(last_file, (0, 0, flipped))
        assert "state.msgpack is missing" in attempt()
        assert "is missing: the export is incomplete" in attempt(last_file, (0, 0, contents[0]))
        assert "is not running" in refusal(peer, CommitImport("import-1")).text
        altered = manifest.encoded().replace(b"orders", b"ordess")
        assert "was changed" in refusal(peer, BeginImport("orders", altered)).text
    with target.connect() as importing:
        assert importing.channels.list() == []
    assert files_in(tmp_path / "there") == []


# --- coming and going ---------------------------------------------------------------------


def begin_import(peer: RawPeer, folder: Path) -> str:
    """An import with its state and its first file put."""
    manifest = manifest_from((folder / MANIFEST).read_bytes())
    import_id = ask(peer, BeginImport("orders", manifest.encoded()), str)
    peer.say(
        wire.Asked(2, PutImport(import_id, len(manifest.files), 0)), (folder / STATE).read_bytes()
    )
    peer.hear(wire.Done)
    first = manifest.files[0].name
    peer.say(wire.Asked(3, PutImport(import_id, 0, 0)), (folder / first).read_bytes())
    peer.hear(wire.Done)
    return import_id


@pytest.mark.parametrize("how", ["abort", "hang up"])
def test_an_import_that_ends_early_leaves_no_files(
    source_session: Session, start: Start, folder: Path, tmp_path: Path, how: str
) -> None:
    exported(source_session, folder)
    target = start("there")
    with RawPeer(target.listen()) as peer:
        peer.greet()
        import_id = begin_import(peer, folder)
        assert len(files_in(tmp_path / "there")) == 1
        if how == "abort":
            peer.say(wire.Asked(4, AbortImport(import_id)))
            peer.hear(wire.Done)
    with target.connect() as importing:
        until(lambda: importing.channels.list() == files_in(tmp_path / "there"))
        assert importing.channels.import_from(folder).info().events > 0


def test_files_of_an_interrupted_import_are_removed_at_the_next_start(
    source_session: Session, start: Start, folder: Path, tmp_path: Path
) -> None:
    exported(source_session, folder)
    penstock.Realm(tmp_path / "there").close()
    stray = tmp_path / "there" / "segments" / "orders.import-1-1" / f"{0:020d}-{9:020d}.arrow"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(next((folder / "events").iterdir()).read_bytes())

    start("there")
    assert files_in(tmp_path / "there") == []


def test_the_number_of_simultaneous_transfers_is_limited(
    realm: penstock.Realm, source_session: Session, folder: Path
) -> None:
    exported(source_session, folder)
    manifest = (folder / MANIFEST).read_bytes()
    with RawPeer(realm.listen()) as peer:
        peer.greet()
        for number in range(4):
            ask(peer, BeginImport(f"new{number}", manifest), str)
        for _ in range(16):
            ask(peer, BeginExport("orders"), ExportBegun)

        assert (
            "the limit of imports at the same time, 4, is reached"
            in refusal(peer, BeginImport("n", manifest)).text
        )
        assert (
            "the limit of exports at the same time, 16, is reached"
            in refusal(peer, BeginExport("orders")).text
        )
