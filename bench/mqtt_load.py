"""Clients of MQTT 3.1.1 that only send and count, so that the server is measured and not the
client. S17 and S18 start them as a separate process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final, cast

import msgspec

from bench.measuring import cpu_s_of_all, memory_kb_of, percentiles_us
from bench.shape import Figures
from penstock.client.connection.threads import fast_loop

SIZE: Final = 128
"""Bytes of a payload."""
WARM_UP_S: Final = 0.5
"""Seconds of work before the measurement."""
FLOOD: Final = 20_000
"""Messages of QoS 0 between two of QoS 1, whose acknowledgement shows that the earlier ones have
arrived."""
WAIT_S: Final = 60.0
"""Longest wait for an answer or for messages, in seconds."""
KEEP_ALIVE_S: Final = 3_600
"""Longer than any work here, so that clients need not ping; rumqttd refuses 0, which means
never."""
AT_ONCE: Final = 200
"""Connections that are opened at the same time."""
_CONNACK, _SUBACK, _PUBACK = 4, 5, 4
"""Bytes of the answers of MQTT 3.1.1, whose sizes are fixed."""
_IDS: Final = 1_000
"""Number of packet ids, used in turn; more than any window here."""


class Job(msgspec.Struct, frozen=True):
    """The work of the process."""

    work: str
    port: int
    server_pid: int
    seconds: float
    connections: int = 1
    """Connections that publish."""
    window: int = 1
    """Unacknowledged messages of each connection; in a fan-out, messages that are sent together."""
    subscribers: int = 0
    topics: int = 0
    wanted: str = "#"
    """The filter of the subscription to retained messages."""
    expected: int = 0
    """Number of retained messages that match the filter."""


def text(value: str) -> bytes:
    """Return a text with its length, as MQTT encodes it."""
    return len(value.encode()).to_bytes(2) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    """Return a packet; ``first`` is its first byte, with type and flags."""
    length, packet_bytes = len(body), bytearray((first,))
    while length >= 0x80:
        packet_bytes.append(length & 0x7F | 0x80)
        length >>= 7
    packet_bytes.append(length)
    return bytes(packet_bytes) + body


def connect(client_id: str, *, clean: bool = True) -> bytes:
    """Return a CONNECT; with ``clean``, the server stores no session."""
    begin = text("MQTT") + bytes((4, 2 if clean else 0)) + KEEP_ALIVE_S.to_bytes(2)
    return packet(0x10, begin + text(client_id))


def subscribe(topic_filter: str, qos: int) -> bytes:
    """Return a SUBSCRIBE with one topic filter."""
    return packet(0x82, b"\0\1" + text(topic_filter) + bytes((qos,)))


def publish(topic: str, qos: int, packet_id: int = 0, *, retain: bool = False) -> bytes:
    """Return a PUBLISH with a payload of :data:`SIZE` bytes."""
    id_bytes = packet_id.to_bytes(2) if qos else b""
    return packet(0x30 | qos << 1 | retain, text(topic) + id_bytes + b"x" * SIZE)


class Link(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client_id: str, *, clean: bool = True) -> None:
        self._connect = connect(client_id, clean=clean)
        self._answered: asyncio.Future[None] | None = None
        """Done when the answer to :meth:`ask` is complete; None without a request."""
        self._answer_bytes_left = 0
        """Number of bytes of the answer that have not been received."""
        self.received_bytes = 0
        self.on_data: Callable[[bytes], None] | None = None
        """Called with received bytes that are not part of an answer."""
        self.transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_lost = False

    async def open(self, port: int) -> None:
        """Connect, and wait until the server accepts the client."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", port)
        await self.ask(self._connect, _CONNACK)

    async def ask(self, request: bytes, answer_bytes: int) -> None:
        """Send a packet, and wait for its answer."""
        self._answer_bytes_left = answer_bytes
        self._answered = asyncio.get_running_loop().create_future()
        self.write(request)
        await asyncio.wait_for(self._answered, WAIT_S)
        self._answered = None

    def write(self, data: bytes) -> None:
        assert self.transport is not None, "the connection is open"
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until the transport accepts more bytes."""
        await self._writable.wait()

    def close(self) -> None:
        if self.transport is not None:
            self.write(b"\xe0\0")
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("the server has closed the connection"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._answered is not None and not self._answered.done():
            answer_part, data = (
                data[: self._answer_bytes_left],
                data[self._answer_bytes_left :],
            )
            self._answer_bytes_left -= len(answer_part)
            if self._answer_bytes_left == 0:
                self._answered.set_result(None)
        if data and self.on_data is not None:
            self.on_data(data)


class Publisher:
    """Sends messages of QoS 1. The number of unacknowledged messages stays constant, because each
    acknowledgement causes another message."""

    def __init__(self, link: Link, topic: str) -> None:
        self.link = link
        packets = [publish(topic, 1, number + 1) for number in range(_IDS)]
        self._packet_bytes = len(packets[0])
        self._packets = b"".join(packets + packets)
        """The packets with all ids, twice, so that any number of adjacent ones is one slice."""
        self._next = 0
        """Index of the next packet to send."""
        self._partial_bytes = 0
        """Received bytes of an incomplete acknowledgement."""
        self.acknowledged = 0
        self.continues = True
        """Whether an acknowledgement causes another message."""
        self.on_progress: Callable[[], None] | None = None
        link.on_data = self._receive

    def send(self, count: int) -> None:
        begin = self._next * self._packet_bytes
        self.link.write(self._packets[begin : begin + count * self._packet_bytes])
        self._next = (self._next + count) % _IDS

    def _receive(self, data: bytes) -> None:
        count, self._partial_bytes = divmod(self._partial_bytes + len(data), _PUBACK)
        self.acknowledged += count
        if self.continues and count:
            self.send(count)
        if self.on_progress is not None and count:
            self.on_progress()


class Consumer:
    """Receives messages of equal size, and acknowledges those of QoS 1."""

    def __init__(self, link: Link, topic: str, qos: int) -> None:
        sample = publish(topic, qos, 1)
        self._link, self._qos = link, qos
        self._packet_bytes = len(sample)
        self._id_offset = len(sample) - SIZE - 2
        """Offset of the packet id in a packet."""
        self._partial = b""
        """Received bytes of an incomplete packet."""
        self.count = 0
        """Number of received messages."""
        self.on_progress: Callable[[], None] | None = None
        link.on_data = self._receive

    def _receive(self, data: bytes) -> None:
        data = self._partial + data if self._partial else data
        count = len(data) // self._packet_bytes
        self._partial = data[count * self._packet_bytes :]
        if self._qos and count:
            starts = range(self._id_offset, count * self._packet_bytes, self._packet_bytes)
            self._link.write(b"".join(b"\x40\2" + data[offset : offset + 2] for offset in starts))
        self.count += count
        if self.on_progress is not None and count:
            self.on_progress()


async def open_links(job: Job, count: int, name: str, *, clean: bool = True) -> list[Link]:
    """Open connections of clients whose ids begin with ``name``, some at a time."""
    links = [Link(f"{name}{number}", clean=clean) for number in range(count)]
    for begin in range(0, count, AT_ONCE):
        await together(link.open(job.port) for link in links[begin : begin + AT_ONCE])
    return links


async def together(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Run coroutines at the same time, and wait until all are done."""
    async with asyncio.TaskGroup() as group:
        for coroutine in work:
            group.create_task(coroutine)


def topic_of(number: int) -> str:
    return f"bench/{number:06d}"


class Meter:
    """Measures the processor time of the server and the number of messages since the creation of
    this object."""

    def __init__(self, job: Job, count: Callable[[], int]) -> None:
        self._job, self._count = job, count
        self._began, self._counted = time.perf_counter(), count()
        self._used_s = cpu_s_of_all(job.server_pid)

    def figures(self) -> Figures:
        taken_s = time.perf_counter() - self._began
        count = self._count() - self._counted
        used_s = cpu_s_of_all(self._job.server_pid) - self._used_s
        if count == 0:
            raise RuntimeError("no message was counted")
        return {
            "events_per_s": count / taken_s,
            "of_server_cpu_s_per_million": used_s / count * 1e6,
        }


async def publishing(job: Job) -> Figures:
    """Publish with QoS 1 over several connections, without a subscriber."""
    links = await open_links(job, job.connections, "p")
    publishers = [Publisher(publisher, topic_of(n)) for n, publisher in enumerate(links)]
    return await _measured(
        job, publishers, lambda: sum(publisher.acknowledged for publisher in publishers)
    )


async def sharing(job: Job) -> Figures:
    """Publish with QoS 1 to a group of consumers, each message to one of them. A new message is
    sent for each consumed one, so that both are measured."""
    consumers = []
    for link in await open_links(job, job.subscribers, "c"):
        await link.ask(subscribe("$share/group/bench/+", 1), _SUBACK)
        consumers.append(Consumer(link, topic_of(0), 1))
    links = await open_links(job, job.connections, "p")
    publishers = [Publisher(link, topic_of(n)) for n, link in enumerate(links)]
    ready: deque[Publisher] = deque()
    sent = len(publishers)

    def come() -> None:
        nonlocal sent
        room = sum(link.count for link in consumers) + len(publishers) - sent
        for _ in range(min(room, len(ready))):
            ready.popleft().send(1)
            sent += 1

    def acknowledged(publisher: Publisher) -> Callable[[], None]:
        def on_progress() -> None:
            ready.append(publisher)
            come()

        return on_progress

    for consumer in consumers:
        consumer.on_progress = come
    for publisher in publishers:
        publisher.continues = False
        publisher.on_progress = acknowledged(publisher)
    return await _measured(job, publishers, lambda: sum(link.count for link in consumers))


async def _measured(job: Job, publishers: Sequence[Publisher], count: Callable[[], int]) -> Figures:
    """Let the publishers send, and measure for the seconds of the job after a warm-up. Raises
    ``RuntimeError`` if the server has closed a connection."""
    for publisher in publishers:
        publisher.send(job.window)
    await asyncio.sleep(min(WARM_UP_S, job.seconds))
    meter = Meter(job, count)
    await asyncio.sleep(job.seconds)
    figures = meter.figures()
    for publisher in publishers:
        publisher.continues = False
    if any(publisher.link.is_lost for publisher in publishers):
        raise RuntimeError("the server has closed connections")
    return figures


async def _wait_until(is_true: Callable[[], bool]) -> None:
    """Wait until a condition is true. Raises ``RuntimeError`` after :data:`WAIT_S`."""
    deadline_s = time.perf_counter() + WAIT_S
    while not is_true():
        if time.perf_counter() > deadline_s:
            raise RuntimeError(f"messages have not arrived within {WAIT_S:.0f} s")
        await asyncio.sleep(0.01)


async def flooding(job: Job) -> Figures:
    """Publish with QoS 0 over one connection, without a subscriber."""
    (link,) = await open_links(job, 1, "p")
    chunk, sent = publish(topic_of(0), 0) * 200, 0

    async def flood() -> None:
        nonlocal sent
        for _ in range(FLOOD // 200):
            link.write(chunk)
            await link.drain()
        await link.ask(publish(topic_of(0), 1, 1), _PUBACK)
        sent += FLOOD + 1

    await flood()
    meter = Meter(job, lambda: sent)
    while time.perf_counter() - meter._began < job.seconds:
        await flood()
    return meter.figures()


async def fanning(job: Job) -> Figures:
    """Send each message to all subscribers, and the next messages when all of them have received
    these. The figure counts deliveries."""
    is_received = asyncio.Event()
    consumers = []
    for link in await open_links(job, job.subscribers, "s"):
        await link.ask(subscribe(topic_of(0), 0), _SUBACK)
        consumers.append(Consumer(link, topic_of(0), 0))
    (publisher,) = await open_links(job, 1, "p")
    chunk, receivers_left = publish(topic_of(0), 0) * job.window, len(consumers)
    rounds = 0

    def watch(consumer: Consumer) -> Callable[[], None]:
        due = job.window

        def on_progress() -> None:
            nonlocal receivers_left, due
            if consumer.count >= due:
                due += job.window
                receivers_left -= 1
                if receivers_left == 0:
                    receivers_left = len(consumers)
                    is_received.set()

        return on_progress

    for consumer in consumers:
        consumer.on_progress = watch(consumer)

    async def once() -> None:
        nonlocal rounds
        is_received.clear()
        publisher.write(chunk)
        await asyncio.wait_for(is_received.wait(), WAIT_S)
        rounds += 1

    for _ in range(20):
        await once()
    meter = Meter(job, lambda: rounds * job.window * len(consumers))
    while time.perf_counter() - meter._began < job.seconds:
        await once()
    return meter.figures()


async def returning(job: Job) -> Figures:
    """Send single messages of QoS 1, each after the round trip of the previous one."""
    link, back = await open_links(job, 2, "l")
    await back.ask(subscribe(topic_of(0), 1), _SUBACK)
    consumer, publisher = Consumer(back, topic_of(0), 1), Publisher(link, topic_of(0))
    publisher.continues = False
    on_progress = asyncio.Event()
    consumer.on_progress = publisher.on_progress = on_progress.set
    latencies: list[float] = []

    async def once() -> None:
        began = time.perf_counter()
        due, acknowledged = consumer.count + 1, publisher.acknowledged + 1
        publisher.send(1)
        while consumer.count < due:
            on_progress.clear()
            await on_progress.wait()
        latencies.append(time.perf_counter() - began)
        while publisher.acknowledged < acknowledged:
            on_progress.clear()
            await on_progress.wait()

    for _ in range(200):
        await once()
    latencies.clear()
    meter = Meter(job, lambda: len(latencies))
    while time.perf_counter() - meter._began < job.seconds:
        await once()
    return meter.figures() | percentiles_us(latencies)


# --- S18: many sessions, topics and connections -------------------------------------------


async def away(job: Job) -> Figures:
    """Store a session for each subscriber, each with a different filter; then publish one message
    after the other, each for one of the sessions."""
    for begin in range(0, job.subscribers, AT_ONCE):
        count = min(AT_ONCE, job.subscribers - begin)
        links = [Link(f"away{begin + number}", clean=False) for number in range(count)]
        await together(link.open(job.port) for link in links)
        for number, link in enumerate(links):
            await link.ask(subscribe(topic_of(begin + number), 1), _SUBACK)
            link.close()
    (link,) = await open_links(job, 1, "p")
    sent = 0

    async def once() -> None:
        nonlocal sent
        await link.ask(publish(topic_of(sent * 7_919 % job.subscribers), 1, 1), _PUBACK)
        sent += 1

    for _ in range(50):
        await once()
    meter = Meter(job, lambda: sent)
    while time.perf_counter() - meter._began < job.seconds:
        await once()
    figures = meter.figures()
    return figures | {"ms": figures["of_server_cpu_s_per_million"] / 1_000}


def retained_topic(number: int) -> str:
    return f"site/{number // 1_000:03d}/{number // 10 % 100:02d}/{number % 10}"


async def retaining(job: Job) -> Figures:
    """Retain a message of each topic."""
    (link,) = await open_links(job, 1, "p")
    began = time.perf_counter()
    for begin in range(0, job.topics, _IDS):
        count = min(_IDS, job.topics - begin)
        packets = [
            publish(retained_topic(begin + number), 1, number + 1, retain=True)
            for number in range(count)
        ]
        await link.ask(b"".join(packets), _PUBACK * count)
    return {"ms": (time.perf_counter() - began) * 1_000}


async def looking(job: Job) -> Figures:
    """Subscribe to a filter, receive all its retained messages, and subscribe again over another
    connection. The figure is the median of the times."""
    taken_s: list[float] = []
    used_s = cpu_s_of_all(job.server_pid)
    began = time.perf_counter()
    size = len(publish(retained_topic(0), 0))
    while not taken_s or time.perf_counter() - began < job.seconds:
        (link,) = await open_links(job, 1, f"look{len(taken_s)}-")
        due = link.received_bytes + _SUBACK + size * job.expected
        started = time.perf_counter()
        await link.ask(subscribe(job.wanted, 0), _SUBACK + size * job.expected)
        taken_s.append(time.perf_counter() - started)
        if link.received_bytes != due:
            raise RuntimeError(
                f"{link.received_bytes - due} bytes more were received than are retained"
            )
        link.close()
    used_s = cpu_s_of_all(job.server_pid) - used_s
    return {
        "ms": sorted(taken_s)[len(taken_s) // 2] * 1_000,
        "events_per_s": job.expected / min(taken_s),
        "of_server_cpu_s_per_million": used_s / len(taken_s) / job.expected * 1e6,
    }


async def idling(job: Job) -> Figures:
    """Open many connections that each subscribe to one topic. All together publish ``window``
    messages a second, each to its own topic with QoS 1."""
    kb_before, began = memory_kb_of(job.server_pid), time.perf_counter()
    links = await open_links(job, job.connections, "i")
    for begin in range(0, len(links), AT_ONCE):
        some = range(begin, min(begin + AT_ONCE, len(links)))
        await together(
            links[number].ask(subscribe(topic_of(number), 0), _SUBACK) for number in some
        )
    connected_s = time.perf_counter() - began
    kb = (memory_kb_of(job.server_pid) - kb_before) / len(links)
    consumers = [Consumer(link, topic_of(number), 0) for number, link in enumerate(links)]
    for link in links:
        link.on_data = _without_acknowledgements(link.on_data)
    rate, sent = job.window, 0
    meter = Meter(job, lambda: sent)
    while (passed_s := time.perf_counter() - meter._began) < job.seconds:
        while sent < passed_s * rate:
            number = sent * 7_919 % len(links)
            links[number].write(publish(topic_of(number), 1, 1))
            sent += 1
        await asyncio.sleep(0.01)
    figures = meter.figures()
    await _wait_until(lambda: sum(number.count for number in consumers) >= sent)
    if any(number.is_lost for number in links):
        raise RuntimeError("the server has closed connections")
    return figures | {
        "ms": figures["of_server_cpu_s_per_million"] * figures["events_per_s"] / 1_000,
        "kb_per_connection": kb,
        "connected_s": connected_s,
    }


def _without_acknowledgements(
    on_data: Callable[[bytes], None] | None,
) -> Callable[[bytes], None]:
    """Return a handler that passes only messages to ``on_data``, without the acknowledgements that
    arrive between them."""
    assert on_data is not None, "a consumer counts the messages of the connection"

    def only_messages(data: bytes) -> None:
        messages = bytearray()
        offset = 0
        while offset < len(data):  # both packets arrive complete: only one of each is in flight
            if data[offset] >> 4 == 4:
                offset += _PUBACK
                continue
            size = len(publish(topic_of(0), 0))
            messages += data[offset : offset + size]
            offset += size
        if messages:
            on_data(bytes(messages))

    return only_messages


WORKS: Final = {
    "publishing": publishing,
    "flooding": flooding,
    "fanning": fanning,
    "sharing": sharing,
    "returning": returning,
    "away": away,
    "retaining": retaining,
    "looking": looking,
    "idling": idling,
}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    figures = fast_loop().run_until_complete(WORKS[job.work](job))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
