"""The network between clients and realm, as a process: ``python -m tests.faults.relaying PORT…``.

It listens on a port of its own for each, says which, and leads every connection to the realm at
PORT. What
it is told on its input, a word a line, happens to all connections: ``slow`` (a little at a time),
``stall`` (nothing passes, nothing is lost), ``flow`` (as it should be), ``half`` (what either
side sends from now on is lost, and neither is told: half-open), ``cut`` (all connections end now).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

PIECE_BYTES = 32 << 10
SLOW_BYTES = 2 << 10
SLOW_S = 0.01


async def pause(seconds: float) -> None:
    """Let real time pass: this is what a network does."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


class Network:
    """All connections, and what happens to them."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_slow = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._deaf: set[asyncio.StreamWriter] = set()
        """Writers that reach nobody any more, without knowing it."""

    async def listen(self, port: int) -> int:
        """The port of connections that are led to ``port``."""

        async def led(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._lead(port, reader, writer)

        server = await asyncio.start_server(led, "127.0.0.1", 0, backlog=1_024)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _lead(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One client's connection, from its first byte to its end."""
        try:
            realm_reader, realm_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, realm_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, realm_writer, writer))
                both.create_task(self._pump(realm_reader, writer, realm_writer))
        finally:
            for each in (writer, realm_writer):
                each.transport.abort()
                self._writers.discard(each)
                self._deaf.discard(each)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(SLOW_BYTES if self._is_slow else PIECE_BYTES):
                if self._is_slow:
                    await pause(SLOW_S)
                await self._flowing.wait()
                if writer in self._deaf:
                    continue
                writer.write(piece)
                await writer.drain()
        for each in (writer, other):
            each.transport.abort()

    def obey(self, word: str) -> None:
        self._is_slow = word == "slow"
        if word == "stall":
            self._flowing.clear()
        else:
            self._flowing.set()
        if word == "half":
            self._deaf |= self._writers
        elif word == "cut":
            for writer in self._writers:
                writer.transport.abort()


async def listen(ports: Sequence[int]) -> None:
    network = Network()
    found = [await network.listen(port) for port in ports]
    sys.stdout.write(f"{' '.join(map(str, found))}\n")
    sys.stdout.flush()
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), sys.stdin
    )
    while line := await words.readline():  # its end is ours
        network.obey(line.decode().strip())
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(listen([int(port) for port in sys.argv[1:]]))
