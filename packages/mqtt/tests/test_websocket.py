"""MQTT over the WebSockets of the HTTP port."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.core.tests.wire.frames import masked
from packages.mqtt.tests.clients import WAIT_S, connected
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from penstock_core.wire.websocket import BINARY, CLOSE, PING, PONG, TEXT, answer_to
from penstock_mqtt.wire.packets import ConnackPacket, ConnectPacket, PubackPacket, PublishPacket
from penstock_mqtt.wire.reading import packet_of
from penstock_mqtt.wire.writing import packet_bytes

pytestmark = pytest.mark.spec("M10")


@pytest.fixture(scope="module")
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm() as realm:
        realm.listen_mqtt()
        yield realm


@pytest.fixture(scope="module")
def url(realm: penstock.Realm) -> str:
    return realm.listen_http()


class WebClient:
    """A client of WebSocket, with frames right or wrong."""

    def __init__(self, url: str, **changed: str | None) -> None:
        place = url.rpartition("//")[2].rstrip("/")
        host, _, port = place.rpartition(":")
        self._line = socket.create_connection((host, int(port)), WAIT_S)
        self.key = base64.b64encode(os.urandom(16)).decode()
        headers: dict[str, str | None] = {
            "host": place,
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": self.key,
            "sec-websocket-protocol": "mqttv3.1, mqtt",
        }
        headers |= {name.replace("_", "-"): value for name, value in changed.items()}
        path = headers.pop("path", "/ws")
        lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
        self._line.sendall("\r\n".join((f"GET {path} HTTP/1.1", *lines, "", "")).encode())
        self._data = b""
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        self.answer = head.decode()

    def __enter__(self) -> WebClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def _more(self) -> None:
        data = self._line.recv(65_536)
        if not data:
            raise EOFError
        self._data += data

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._more()
        taken_data, self._data = self._data[:count], self._data[count:]
        return taken_data

    def frame(self) -> tuple[int, bytes]:
        first, size = self._take(2)
        size = int.from_bytes(self._take({126: 2, 127: 8}[size])) if size > 125 else size
        return first & 0x0F, self._take(size)

    def send(self, *frames: bytes) -> None:
        self._line.sendall(b"".join(frames))

    def packet(self) -> Any:
        opcode, data = self.frame()
        assert opcode == BINARY
        assert data[1] == len(data) - 2, "a packet is in a frame of its own here"
        return packet_of(data[0], data[2:], 5)


def test_a_client_publishes_over_websocket(realm: penstock.Realm, url: str) -> None:
    connect = packet_bytes(ConnectPacket("browser"), 5)
    publish = packet_bytes(PublishPacket("web/a", b"1", 1, packet_id=1), 5)
    with WebClient(url) as client:
        assert client.status == 101
        assert client.headers["sec-websocket-protocol"] == "mqtt"
        assert answer_to(client.key) in client.answer
        client.send(masked(BINARY, connect[:5]), masked(BINARY, connect[5:] + publish[:3]))
        assert isinstance(client.packet(), ConnackPacket)
        client.send(masked(PING, b"there?"), masked(BINARY, publish[3:]))
        assert client.frame() == (PONG, b"there?")
        assert client.packet() == PubackPacket(1)
        client.send(masked(CLOSE, b"\x03\xe8"))
        assert client.frame() == (CLOSE, b"\x03\xe8")
        with pytest.raises(EOFError):
            client.frame()

    with realm.connect() as session:
        (event,) = session.channels.get("mqtt").browse(selector="topic = 'web/a'")
        assert event.headers["application_id"] == "browser"


@pytest.mark.spec("M10")
def test_clients_of_mqtt_find_it_where_they_look_by_themselves(url: str) -> None:
    with WebClient(url, path="/mqtt") as client:
        client.send(masked(BINARY, packet_bytes(ConnectPacket("browser"), 5)))
        assert client.packet().reason == 0
    with WebClient(url, path="/mqtt", sec_websocket_protocol="penstock") as client:
        assert client.status == 400


def test_messages_of_a_client_that_has_a_socket_reach_it(realm: penstock.Realm, url: str) -> None:
    with WebClient(url) as client, connected(realm.listen_mqtt(), "browser") as displaced:
        client.send(masked(BINARY, packet_bytes(ConnectPacket("browser"), 5)))
        assert client.packet().reason == 0
        assert displaced.receive().reason == 0x8E, "it is the same client"


@pytest.mark.parametrize(
    ("frame", "status"), [(masked(TEXT, b"text"), 1_003), (b"\x82\x00", 1_002)]
)
def test_what_is_no_binary_message_ends_it(url: str, frame: bytes, status: int) -> None:
    with WebClient(url) as client:
        client.send(frame)
        opcode, data = client.frame()
        assert (opcode, int.from_bytes(data[:2])) == (CLOSE, status)
        with pytest.raises(EOFError):
            client.frame()


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        ({"origin": "http://evil.example"}, 403, "evil.example"),
        ({"sec_fetch_site": "cross-site"}, 403, ""),
        ({"host": "evil.example"}, 403, "evil.example"),
        ({"sec_websocket_version": "8"}, 426, "13"),
        ({"sec_websocket_key": "short"}, 400, "16 bytes"),
        ({"sec_websocket_protocol": "soap"}, 400, "mqtt"),
        ({"sec_websocket_protocol": None}, 400, "mqtt"),
    ],
)
def test_a_handshake_that_is_not_right_is_refused(
    url: str, changed: dict[str, str | None], status: int, says: str
) -> None:
    with WebClient(url, **changed) as client:
        assert client.status == status
        length = int(client.headers["content-length"])
        assert says in client._take(length).decode()
        with pytest.raises(EOFError):
            client.frame()


def test_a_page_of_the_realm_may_open_one(url: str) -> None:
    with WebClient(url, origin=url.rstrip("/")) as client:
        assert client.status == 101


def test_without_mqtt_there_is_none_and_elsewhere_neither(url: str) -> None:
    with penstock.Realm() as other_realm, WebClient(other_realm.listen_http()) as client:
        assert client.status == 400
        assert b"penstock" in client._take(int(client.headers["content-length"]))
    with WebClient(url, path="/elsewhere") as client:
        assert client.status == 404


def test_the_native_protocol_is_spoken_there_too(url: str) -> None:
    hello = wire.encode(wire.Hello("raw", "web-session"))
    message = PREFACE + b"".join(frame(hello))
    with WebClient(url, sec_websocket_protocol="soap, penstock, mqtt") as client:
        assert client.headers["sec-websocket-protocol"] == "penstock"
        client.send(masked(BINARY, message[:11]), masked(BINARY, message[11:]))
        reader, native_frame = FrameReader(), None
        while native_frame is None:
            opcode, data = client.frame()
            assert opcode == BINARY
            reader.receive(data)
            native_frame = reader.next_frame()
        assert isinstance(wire.decode_from_server(native_frame[0]), wire.Welcome)
        client.send(masked(BINARY, b"".join(frame(wire.encode(wire.Bye())))))
        opcode, data = client.frame()
        while opcode == BINARY:
            opcode, data = client.frame()
        assert opcode == CLOSE


def test_amqp_is_spoken_there_too(realm: penstock.Realm, url: str) -> None:
    pytest.importorskip("proton")
    realm.listen_amqp()
    with WebClient(url, sec_websocket_protocol="amqp") as client:
        assert client.headers["sec-websocket-protocol"] == "amqp"
        client.send(masked(BINARY, b"AMQP\0\1"), masked(BINARY, b"\0\0"))
        assert client.frame() == (BINARY, b"AMQP\0\1\0\0")


def test_a_page_of_another_site_opens_none_of_them(url: str) -> None:
    for protocol in ("amqp", "penstock"):
        wrong = {"origin": "http://evil.example", "sec_websocket_protocol": protocol}
        with WebClient(url, **wrong) as client:
            assert client.status == 403


def test_a_page_that_does_not_identify_itself_is_closed_in_time(
    realm: penstock.Realm, url: str
) -> None:
    with WebClient(url) as client:

        async def check_connections() -> None:
            for connection in list(realm.listener.connections):
                if connection.protocol == "mqtt" and not connection.session:
                    connection.check(connection.heard_s + 1_000)

        client.send(masked(PING, b""))
        assert client.frame() == (PONG, b"")
        realm.loop.call(check_connections())
        assert client.frame()[0] == CLOSE
