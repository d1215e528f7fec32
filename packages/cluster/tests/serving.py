"""Serves the clients of a realm on a simulated machine, as the process of a node does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.realm import RunningRealm

HOST: Final = "127.0.0.1"


async def serve_clients(
    realm: RunningRealm,
    listener: NativeListener,
    ports: Sequence[int],
    stopping: asyncio.Event,
    *,
    listening: Callable[[], None] = lambda: None,
    beside: Sequence[Coroutine[Any, Any, None]] = (),
) -> None:
    """Serve until ``stopping`` is set, then close the realm. ``listening`` is called once clients
    can connect. The tasks ``beside`` run until the realm is closed."""
    ready = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            aside = [tasks.create_task(coroutine) for coroutine in beside]
            tasks.create_task(realm.run())
            aside.append(tasks.create_task(listener.run(ready)))
            await ready.wait()
            for port in ports:
                await listener.listen(HOST, port)
            listening()
            await stopping.wait()
            await listener.close()
            await realm.close()
            for task in aside:
                task.cancel()
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        listener.cut()
