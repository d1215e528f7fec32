"""Steps that the tests of exports and imports share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_core.api.requests import Request
from penstock_core.api.transfers import ExportedBytes, ReadExport
from penstock_core.columns.files.exports import (
    MANIFEST,
    STATE,
    Manifest,
    StateFile,
    described_state,
    manifest_from,
    state_bytes,
    state_from,
)
from penstock_core.wire.native import messages as wire
from penstock_testing.peers import RawPeer
from tests.patience import until

T = TypeVar("T")
Start = Callable[..., penstock.Realm]


def events(count: int, **more: object) -> list[penstock.Event]:
    return [
        penstock.Event(b"%d" % n, tag="t", properties={"n": n, **more}, persistent=n % 3 != 0)
        for n in range(count)
    ]


def halfway(channel: Channel) -> None:
    """Deliver fifty events to a durable and acknowledge every second of them; the others return to
    the durable."""
    durable = channel.durables.create("billing", type="shared", start="earliest")
    with durable.subscribe(window=40, timeout=30.0) as held:
        for number, event in enumerate(held):
            if number % 2:
                event.ack()
            if number == 49:
                break


def files_in(store: Path) -> list[str]:
    return [path.name for path in (store / "segments").rglob("*") if path.is_file()]


def exported(source_session: Session, folder: Path) -> list[Path]:
    """Create a channel with a durable and with events on disk and in memory, and export it; return
    the files of the export."""
    orders = source_session.channels.create("orders", storage={"events_per_spindle": 40})
    orders.publish_many(events(100))
    until(lambda: orders.info().storage.sealed_files == 2)  # the rest stays in memory
    halfway(orders)
    source_session.channels.export("orders", folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def ask(peer: RawPeer, request: Request[Any], kind: type[T]) -> T:
    peer.say(wire.Asked(1, request))
    return msgspec.convert(peer.hear(wire.Done).answer, kind)


def refusal(peer: RawPeer, request: Request[Any]) -> wire.Failed:
    peer.say(wire.Asked(1, request))
    return peer.hear(wire.Failed)


def read_whole(peer: RawPeer, request: ReadExport) -> bytes:
    content = b""
    while True:
        part = ask(peer, msgspec.structs.replace(request, offset=len(content)), ExportedBytes)
        content += part.content
        if len(content) == part.file.size:
            return content


def read(folder: Path) -> tuple[Manifest, StateFile]:
    manifest = manifest_from((folder / MANIFEST).read_bytes())
    return manifest, state_from(manifest, (folder / STATE).read_bytes())


def forge(folder: Path, manifest: Manifest, state: StateFile) -> None:
    """Replace the state in an export, and change the manifest so that it matches."""
    content = state_bytes(state)
    (folder / STATE).write_bytes(content)
    forged = msgspec.structs.replace(manifest, state=described_state(content))
    (folder / MANIFEST).write_bytes(forged.encoded())
