"""Bytes of a peer that sends much are taken together."""

from __future__ import annotations

from penstock_amqp.read_batching import (
    GATHER_S,
    GATHERED_BYTES_MAX,
    MANY_BYTES,
    ReadBatch,
)
from penstock_testing.loop import pass_time, simulated

MUCH = b"m" * MANY_BYTES
LITTLE = b"l"


def gathered() -> tuple[ReadBatch, list[bytes]]:
    """One, and what it gave on."""
    batches: list[bytes] = []
    batch = ReadBatch(batches.append, lambda: batch.flush())
    return batch, batches


@simulated
async def test_what_is_here_can_be_taken_in_pieces() -> None:
    batches: list[bytes] = []
    ready: list[None] = []
    batch = ReadBatch(batches.append, lambda: ready.append(None))
    batch.add(MUCH)
    batch.add(MUCH)
    assert ready == []
    batch.add(LITTLE)
    assert ready == [None]

    assert batch.take_some(MANY_BYTES + 1)
    batch.add(LITTLE)
    assert batch.take_some(MANY_BYTES - 1)
    assert not batch.take_some(MANY_BYTES)
    assert not batch.take_some(MANY_BYTES)
    assert batches == [MUCH + b"m", MUCH[1:], LITTLE + LITTLE]
    await pass_time(2 * GATHER_S)
    assert len(ready) == 2, "it was told of the byte that came meanwhile, and no more"


@simulated
async def test_a_little_is_taken_at_once() -> None:
    gathering, batches = gathered()
    gathering.add(LITTLE)

    assert batches == [LITTLE]


@simulated
async def test_much_waits_a_moment_for_more() -> None:
    gathering, batches = gathered()
    gathering.add(MUCH)
    gathering.add(MUCH)
    assert batches == []
    await pass_time(2 * GATHER_S)

    assert batches == [MUCH + MUCH]


@simulated
async def test_a_little_behind_much_ends_the_waiting() -> None:
    gathering, batches = gathered()
    gathering.add(MUCH)
    gathering.add(LITTLE)
    assert batches == [MUCH + LITTLE]
    await pass_time(2 * GATHER_S)

    assert batches == [MUCH + LITTLE], "once"


@simulated
async def test_no_more_is_gathered_than_its_limit() -> None:
    gathering, batches = gathered()
    for _ in range(GATHERED_BYTES_MAX // MANY_BYTES):
        gathering.add(MUCH)

    assert [len(batch) for batch in batches] == [GATHERED_BYTES_MAX]


@simulated
async def test_what_is_here_can_be_taken_now() -> None:
    gathering, batches = gathered()
    gathering.flush()
    assert batches == []
    gathering.add(MUCH)
    gathering.flush()
    assert batches == [MUCH]
    await pass_time(2 * GATHER_S)

    assert batches == [MUCH], "once"
