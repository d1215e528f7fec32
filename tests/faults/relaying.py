"""The network between clients and realm, as a process: ``python -m tests.faults.relaying PORT…``.

It listens on a new port for each PORT, prints these ports, and relays every connection to the realm
at PORT. Each line of its input sets the mode of all connections: ``slow`` (a little at a time),
``stall`` (data waits, but is not lost), ``flow`` (normal), ``half`` (all data from now on is lost
without notice: half-open), ``cut`` (all connections end now).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

CHUNK_BYTES = 32 << 10
SLOW_BYTES = 2 << 10
SLOW_S = 0.01


async def pause(seconds: float) -> None:
    """Let real time pass, as a network does."""
    has_passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, has_passed.set)
    await has_passed.wait()


class Network:
    """All connections and their mode."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_slow = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._half_open: set[asyncio.StreamWriter] = set()
        """Writers whose data is lost without notice."""

    async def listen(self, port: int) -> int:
        """Return a new port whose connections are relayed to ``port``."""

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay(port, reader, writer)

        server = await asyncio.start_server(relay, "127.0.0.1", 0, backlog=1_024)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _relay(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Relay a client's connection until its end."""
        try:
            realm_reader, realm_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, realm_writer}
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(reader, realm_writer, writer))
                directions.create_task(self._pump(realm_reader, writer, realm_writer))
        finally:
            for end in (writer, realm_writer):
                end.transport.abort()
                self._writers.discard(end)
                self._half_open.discard(end)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(SLOW_BYTES if self._is_slow else CHUNK_BYTES):
                if self._is_slow:
                    await pause(SLOW_S)
                await self._flowing.wait()
                if writer in self._half_open:
                    continue
                writer.write(chunk)
                await writer.drain()
        for end in (writer, source):
            end.transport.abort()

    def set_mode(self, word: str) -> None:
        self._is_slow = word == "slow"
        if word == "stall":
            self._flowing.clear()
        else:
            self._flowing.set()
        if word == "half":
            self._half_open |= self._writers
        elif word == "cut":
            for writer in self._writers:
                writer.transport.abort()


async def listen(ports: Sequence[int]) -> None:
    network = Network()
    own_ports = [await network.listen(port) for port in ports]
    sys.stdout.write(f"{' '.join(map(str, own_ports))}\n")
    sys.stdout.flush()
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(words), sys.stdin
    )
    while line := await words.readline():  # the end of the input ends this process
        network.set_mode(line.decode().strip())
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(listen([int(port) for port in sys.argv[1:]]))
