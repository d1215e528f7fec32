"""The servers of an engine that nodes bring along: how they are named, and what is found there."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock_cluster.bootstrap.engine_directory import EngineDirectory, check_ports
from penstock_cluster.bootstrap.engine_files import (
    configuration,
    engine_password,
    write_certificates,
)
from penstock_cluster.bootstrap.engine_peers import (
    Peer,
    PeerAnswer,
    ask_peer,
    own_peer,
    parse_peers,
)
from penstock_cluster.bootstrap.storage_engines import engine_tls
from penstock_cluster.serving.beside_engine import plan_of
from penstock_core.vocabulary.errors import AddressInUse, DataDirectoryInUse, InvalidArgument
from penstock_server.settings import ClusterSettings

THREE = "n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3"
SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"another_secret__another_secret__"


def test_peers_have_a_name_an_address_and_three_ports_in_a_row() -> None:
    one, two, three = parse_peers("n1=a, n2=10.0.0.2:5000, n3=[fd00::3]:7000")

    assert one == Peer("n1", "a", 4222)
    assert (two.address, two.route_port, two.monitor_port) == ("10.0.0.2:5000", 5001, 5002)
    assert (three.host, three.address) == ("fd00::3", "[fd00::3]:7000")
    assert parse_peers("n1=fd00::1,n2=fd00::2,n3=fd00::3")[2] == Peer("n3", "fd00::3", 4222)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n1=a,n2=b", "names 2 machines; an engine has three or five servers"),
        ("n1=a,n2=b,n3=c,n4=d", "names 4 machines"),
        ("", "names 0 machines"),
        ("n1=a,n2=b,n1=c", "has the name n1 twice"),
        ("n1=a,n2=b,n3=a", "has n1 and n3 at the same port"),
        ("n1=a:4222,n2=a:4224,n3=b", "both use 4224"),
        ("a,b,c", "has 'a', which is not NAME=HOST"),
        ("n1=,n2=b,n3=c", "has 'n1=', which is not NAME=HOST"),
        ("n1=a:x,n2=b,n3=c", "'x' is not a port"),
        ("n1=a:65534,n2=b,n3=c", "a number up to 65533"),
        ("n1=127.0.0.1,n2=b,n3=c", "has n1=127.0.0.1, which other machines do not reach"),
    ],
)
def test_peers_that_would_not_do_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        parse_peers(text)


def test_a_node_is_one_of_its_peers() -> None:
    peers = parse_peers(THREE)

    assert own_peer(peers, "n2").host == "10.0.0.2"
    with pytest.raises(InvalidArgument, match="--name is 'n4', and --peers has n1, n2, n3"):
        own_peer(peers, "n4")


def test_a_plan_needs_a_secret_and_an_address_that_fits(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "short").write_bytes(b"short")
    secret, local = str(tmp_path / "secret"), parse_peers("n1=::1,n2=[::1]:5000,n3=[::1]:6000")

    plan = plan_of(parse_peers(THREE), "n1", "0.0.0.0", secret_file=secret)
    assert (plan.host, plan.own_peer.host, plan.has_tls) == ("0.0.0.0", "10.0.0.1", True)
    assert not plan_of(local, "n1", None, secret_file=secret).has_tls
    with pytest.raises(InvalidArgument, match="openssl rand -hex 32"):
        plan_of(parse_peers(THREE), "n1", None, secret_file="")
    with pytest.raises(InvalidArgument, match="which has 5 bytes"):
        plan_of(parse_peers(THREE), "n1", None, secret_file=str(tmp_path / "short"))
    with pytest.raises(InvalidArgument, match="only this machine reaches"):
        plan_of(local, "n1", "0.0.0.0", secret_file=secret)


def test_a_port_that_is_taken_is_refused_before_anything_starts() -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]

        three = f"({port - 2}|{port - 1}|{port})"  # another program may have one of them as well
        with pytest.raises(AddressInUse, match=f"port {three} of 127.0.0.1 .* of the engine here"):
            check_ports("127.0.0.1", Peer("n1", "127.0.0.1", port - 2))
    with pytest.raises(InvalidArgument, match=r"cannot listen on 192.0.2.250"):
        check_ports("192.0.2.250", Peer("n1", "192.0.2.250", 4222))


def test_a_directory_is_for_one_node_and_for_nothing_else(tmp_path: Path) -> None:
    with EngineDirectory(tmp_path / "data") as home:
        assert home.node.parent == home.engine.parent == tmp_path / "data"
        with pytest.raises(DataDirectoryInUse, match="give each node its own"):
            EngineDirectory(tmp_path / "data")
    (tmp_path / "data" / "registry").mkdir()
    with pytest.raises(InvalidArgument, match="the data directory of a realm or a node"):
        EngineDirectory(tmp_path / "data")


def test_a_configuration_syncs_always_and_lets_nobody_in_without_password_and_certificate(
    tmp_path: Path,
) -> None:
    peers = parse_peers(THREE)
    tls = write_certificates(tmp_path, SECRET, peers[0])
    written = configuration(
        tmp_path, "penstock", peers[0], peers=peers, host="0.0.0.0", password="PASSWORD", tls=tls
    )

    assert "sync_interval: always" in written
    assert written.count('authorization { user: penstock, password: "PASSWORD" }') == 2
    assert written.count("verify: true") == 2
    assert 'https: "0.0.0.0:4224"' in written
    assert '"nats://penstock:PASSWORD@10.0.0.2:4223"' in written
    assert "10.0.0.1:4223" not in written
    plain = configuration(
        tmp_path, "penstock", peers[0], peers=peers, host="127.0.0.1", password="PASSWORD", tls=None
    )
    assert "tls" not in plain
    assert engine_password(SECRET) == engine_password(bytes(SECRET)) != engine_password(OTHER)


def settings_in(folder: Path, secret: bytes, peer: Peer) -> ClusterSettings:
    folder.mkdir()
    made = write_certificates(folder, secret, peer)
    return ClusterSettings(
        tls_authority=str(made.authority),
        tls_certificate=str(made.certificate),
        tls_key=str(made.key),
    )


@pytest.mark.parametrize("secret", [SECRET, OTHER], ids=["same", "other"])
def test_machines_know_each_other_by_the_secret_alone(tmp_path: Path, secret: bytes) -> None:
    one = engine_tls(settings_in(tmp_path / "one", SECRET, Peer("n1", "a", 4222)))
    two = settings_in(tmp_path / "two", secret, Peer("n2", "b", 4222))
    assert one is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_verify_locations(two.tls_authority)
    server.load_cert_chain(two.tls_certificate, two.tls_key)
    server.verify_mode = ssl.CERT_REQUIRED

    if secret == SECRET:
        shake_hands(one, server, "b")
        return
    with pytest.raises(ssl.SSLError):
        shake_hands(one, server, "b")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Raises ``SSLError`` where one of them does not know the other."""
    to_server, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, to_server, server_hostname=name),
        server.wrap_bio(to_server, back, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    ends[1].write(b"x")
    assert ends[0].read(1) == b"x"


def test_settings_of_tls_that_do_not_do_are_refused(tmp_path: Path) -> None:
    assert engine_tls(ClusterSettings()) is None
    with pytest.raises(InvalidArgument, match="belong together"):
        engine_tls(ClusterSettings(tls_certificate="node.pem"))
    with pytest.raises(InvalidArgument, match="cannot be used"):
        engine_tls(ClusterSettings(tls_authority=str(tmp_path / "missing.pem")))


@contextmanager
def saying(*lines: bytes) -> Iterator[Peer]:
    """Somebody who says these lines, one at once and one for each that comes."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()

        def answer() -> None:
            guest, _ = door.accept()
            with guest, guest.makefile("rb") as heard:
                guest.sendall(lines[0])
                for line in lines[1:]:
                    heard.readline()
                    heard.readline()
                    guest.sendall(line)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Peer("n2", "127.0.0.1", door.getsockname()[1])
        thread.join()


INFO = b'INFO {"server_name":"n2","cluster":"penstock","version":"2.15.1"} \r\n'


@pytest.mark.parametrize(
    ("lines", "state", "finding"),
    [
        ((INFO, b"PONG\r\n"), "there", "n2 at"),
        ((INFO, b'INFO {"server_name":"n2"}\r\nPONG\r\n'), "there", "n2 at"),
        ((INFO, b"-ERR 'Authorization Violation'\r\n"), "wrong", "it has another secret"),
        ((INFO.replace(b'"n2"', b'"n3"'),), "wrong", "the engine's server 'n3' answers there"),
        ((INFO.replace(b"penstock", b"other"),), "wrong", "belongs to the cluster 'other'"),
        ((b'INFO {"server_name":"n2","cluster":"penstock","tls_required":true}\r\n',), "wrong",
         "it has TLS"),
        ((b"HTTP/1.1 400 Bad Request\r\n",), "wrong", "not a NATS server"),
        ((b"INFO nothing\r\n",), "wrong", "not a NATS server"),
        ((INFO.replace(b"INFO", b"INFORM"),), "wrong", "not a NATS server"),
        ((b"",), "wrong", "not a NATS server"),
    ],
)  # fmt: skip
def test_whoever_answers_at_a_peers_address_is_told_from_a_peer(
    lines: tuple[bytes, ...], state: str, finding: str
) -> None:
    with saying(*lines) as peer:
        answer = ask_peer(peer, "penstock", "password", tls=None)

    assert answer.state == state
    assert finding in answer.finding


def test_a_peer_that_is_not_there_yet_is_absent() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        assert ask_peer(Peer("n2", "127.0.0.1", port), "penstock", "", tls=None) == PeerAnswer(
            "absent", f"n2 at 127.0.0.1:{port}: Connection refused"
        )
