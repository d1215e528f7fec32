"""Building a realm's state from what is stored: the newest snapshot, then the journal."""

from __future__ import annotations

import structlog
from msgspec import Struct

from penstock.core.errors import Damaged
from penstock.core.ports import Blobs, Block, Journal
from penstock.core.state import Rules
from penstock.runtime.records import decode_block
from penstock.runtime.state import RealmState

SNAPSHOTS = "snapshots/"
READ_BLOCKS = 256

_log = structlog.get_logger("penstock.recovery")


class Recovered(Struct):
    state: RealmState
    events: int
    """Events stored."""
    blocks: int
    """Journal blocks replayed."""
    snapshot: int
    """Sequence of the block the snapshot was taken after; 0: there was none."""
    damage: list[str]
    """What could not be read, for people."""


def snapshot_name(sequence: int) -> str:
    return f"{SNAPSHOTS}{sequence:020d}.snap"


async def recover(journal: Journal, blobs: Blobs, rules: Rules) -> Recovered:
    """Read everything that is stored. Damage is reported and left where it is (SEM S1)."""
    damage: list[str] = []
    state, sequence = await _from_snapshot(blobs, rules, damage)
    info = journal.info()
    if info.cut:
        damage.append(f"a torn tail of {info.cut} bytes was cut from the journal and kept aside")
    if info.floor > sequence:
        damage.append(
            f"the journal starts after block {info.floor}, the newest readable snapshot is of "
            f"block {sequence}: what lies between is missing"
        )
        sequence = info.floor
    blocks = 0
    at = sequence + 1
    while at <= info.tail:
        found = await journal.read(at, READ_BLOCKS)
        if not found:
            break
        for block in found:
            at = block.seq + (1 if isinstance(block, Block) else block.count)
            if isinstance(block, Block):
                blocks += 1
                _apply(state, block.data, damage)
            else:
                damage.append(f"{block.where}: {block.reason}")
    for channel in state.channels.values():
        channel.recovered()
    damage += [f"skipped, because an earlier block is damaged: {what}" for what in state.skipped]
    events = sum(len(channel.state.stored) for channel in state.channels.values())
    return Recovered(state, events, blocks, sequence, damage)


def _apply(state: RealmState, data: memoryview, damage: list[str]) -> None:
    try:
        header, bodies = decode_block(data)
        for record in header.records:
            state.apply_stored(record, bodies)
    except Damaged as error:
        damage.append(str(error))


async def _from_snapshot(blobs: Blobs, rules: Rules, damage: list[str]) -> tuple[RealmState, int]:
    """The state of the newest snapshot that can be read, and the block it stands for."""
    names = [info.name for info in await blobs.list(SNAPSHOTS)]
    for name in reversed(names):
        state = RealmState(rules)
        try:
            header, bodies = decode_block(checked(await blobs.get(name), name))
            for record in header.records:
                state.apply_stored(record, bodies)
        except Damaged as error:
            damage.append(f"snapshot {name}: {error}")
            continue
        return state, int(name.removeprefix(SNAPSHOTS).removesuffix(".snap"))
    return RealmState(rules), 0


def checked(blob: memoryview, name: str) -> memoryview:
    """The bytes of a snapshot without its checksum. Raises ``Damaged``."""
    from xxhash import xxh3_64_intdigest

    body, checksum = blob[8:], int.from_bytes(blob[:8], "little")
    if xxh3_64_intdigest(body) != checksum:
        raise Damaged(f"{name} fails its checksum")
    return body
