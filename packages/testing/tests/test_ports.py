"""Free ports: no process gets a port of another one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock_testing.ports import (
    BLOCK_PORTS,
    HOST,
    PORTS,
    PortBlock,
    free_port,
    free_ports,
    free_row,
)

BY_ANOTHER_PROCESS = """
import sys
from penstock_testing.ports import PortBlock
print(*PortBlock().take(int(sys.argv[1])))
"""


@pytest.fixture
def block() -> Iterator[PortBlock]:
    claimed = PortBlock()
    yield claimed
    claimed.close()


def test_ports_are_different_and_nobody_listens_on_them() -> None:
    ports = [*free_ports(20), free_port()]

    assert len(set(ports)) == 21
    for port in ports:
        with socket.create_server((HOST, port)) as server:
            assert server.getsockname()[1] in PORTS


def test_another_process_gets_other_ports(block: PortBlock) -> None:
    own_ports = block.take(BLOCK_PORTS // 2)

    printed = subprocess.run(
        [sys.executable, "-c", BY_ANOTHER_PROCESS, str(BLOCK_PORTS // 2)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert not set(own_ports) & set(map(int, printed.split()))


def test_a_port_in_use_is_left_out(block: PortBlock) -> None:
    (first,) = block.take(1)
    with socket.create_server((HOST, first + 2)):
        later = block.take(5)

    assert first + 2 not in later
    assert sorted(later) == later
    assert later[0] > first


def test_a_port_comes_again_after_all_others(block: PortBlock) -> None:
    (first,) = block.take(1)
    half = BLOCK_PORTS // 2
    others = block.take(half)

    assert first not in others
    assert first in block.take(half)


def test_a_row_has_consecutive_ports(block: PortBlock) -> None:
    (first,) = block.take(1)
    with socket.create_server((HOST, first + 2)):
        row = block.take_row(3)

    assert row > first + 2
    assert block.take(1)[0] > row + 2
    for port in range(row, row + 3):
        socket.create_server((HOST, port)).close()


def test_rows_of_this_process_are_different() -> None:
    first, second = free_row(3), free_row(3)

    assert not {*range(first, first + 3)} & {*range(second, second + 3)}


def test_more_ports_than_a_block_has_are_refused(block: PortBlock) -> None:
    with pytest.raises(AssertionError, match=f"fewer than {BLOCK_PORTS} ports of range"):
        block.take(BLOCK_PORTS)
