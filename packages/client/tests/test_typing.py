"""The findings of type checkers in programs that use the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
from __future__ import annotations

from typing import Unpack

import penstock
from penstock import aio

session = penstock.connect("penstock://localhost")
penstock.conect("penstock://localhost")  # [attr-defined]
try:
    session.info()
except penstock.NameDoesNotExits:  # [attr-defined]
    pass
except penstock.NameDoesNotExist:
    pass

orders: penstock.Channel = session.channels.create(
    "orders", type="persistent", engine="jms", ttl=5, keys={"sku": 1}, storage={"sync": "none"}
)
session.channels.create("orders", type="persistant")  # [arg-type]
session.channels.create("orders", engine="kafka")  # [arg-type]
session.channels.create("orders", capcity=5)  # [call-arg]
session.channels.create("orders", ttl=b"1h")  # [arg-type]
session.channels.create("orders", storage={"sync": "never"})  # [typeddict-item]
session.channels.create("orders", storage={"snyc": "none"})  # [typeddict-unknown-key]
session.channels.create("orders", max_deliveries=3)  # [call-arg]
orders.publish(b"x", tag="a", ttl=5, transient=True, deliver_at=1.5)
orders.publish(b"x", prio=3)  # [call-arg]
orders.publish(b"x", ttl=b"1h")  # [arg-type]
orders.edit(ttl="1h", archive="./archive")
orders.edit(type="reliable")  # [call-arg]
session.queues.create("work", dead_event_store="dead", max_deliveries=3)
session.queues.create("work", archive="./archive")  # [call-arg]
session.queues.get("work").push(b"x", transient=True)  # [call-arg]
with session.transaction() as together:
    together.publish(orders, b"x", priority=3)
    together.publish(orders, b"x", prio=3)  # [call-arg]


def publish(**attributes: Unpack[penstock.EventAttributes]) -> int:
    return orders.publish(b"x", **attributes)
orders.durables.create("billing", type="serial", start="latest", strict_order=True)
orders.durables.create("billing", type="shard")  # [arg-type]
orders.durables.create("billing", start="newest")  # [arg-type]
orders.durables.create("billing", max_delivery=3)  # [call-arg]
session.joins.create("orders", "work", selector="price > 5")
session.joins.create("orders", "work", filter="price > 5")  # [call-arg]


async def live() -> None:
    async with aio.connect("penstock://localhost") as session:
        orders: aio.Channel = await session.channels.create("orders", type="reliable")
        await session.channels.create("orders", type="relyable")  # [arg-type]
        await orders.publish(b"x", priority=3)
        await orders.publish(b"x", prio=3)  # [call-arg]
        await session.queues.create("work", capcity=5)  # [call-arg]
        await orders.durables.create("billing", type="shard")  # [arg-type]
        await orders.durables.create("billing", max_delivery=3)  # [call-arg]
        await session.joins.create("orders", "work", filter="price > 5")  # [call-arg]
    again: aio.Session = await aio.connect("penstock://localhost")
    await again.close()
    aio.conect("penstock://localhost")  # [attr-defined]
    async with aio.Realm("./data") as realm, realm.connect() as within:
        await within.channels.create("orders", type="relyable")  # [arg-type]
        realm.conect()  # [attr-defined]
"""
"""A program with lines that a type checker must refuse, each with mypy's error code."""


@pytest.mark.slow
def test_mypy_refuses_what_is_misspelt_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--follow-imports=silent",
    ]
    output = subprocess.run(
        [
            *command,
            "--follow-imports=silent",
            "--ignore-missing-imports",
            f"--cache-dir={tmp_path / 'cache'}",
            str(program),
        ],
        env={"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    ).stdout

    errors = re.findall(r"program\.py:(\d+): error: .*\[([a-z-]+)\]$", output, re.MULTILINE)
    wanted = [
        (str(number), code[1])
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if (code := re.search(r"# \[([a-z-]+)\]", line))
    ]
    assert errors == wanted, output
