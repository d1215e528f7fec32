"""TLS and client certificates, natively, and their files read again (SEM A5)."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock_core.vocabulary.errors import CannotConnect, InvalidArgument
from penstock_server.frontends.shared.tls import Tls
from penstock_testing.process import ServerProcess
from tests.access.certificates import Authority
from tests.access.realms import authority_in, realm_with_tls

pytestmark = pytest.mark.spec("A5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return authority_in(folder)


@pytest.fixture
def realm(folder: Path, authority: Authority) -> Iterator[penstock.Realm]:
    with realm_with_tls(folder, authority) as realm:
        yield realm


def test_a_client_certificate_names_the_user(
    realm: penstock.Realm, folder: Path, authority: Authority
) -> None:
    files = f"?ca={authority.file}&certificate={folder / 'alice.pem'}&key={folder / 'alice.key'}"

    with penstock.connect(realm.listen() + files) as session:
        me = session.access.me()
        session.channels.create("orders").publish(b"over TLS")

    assert (me.user, me.realm) == ("certificate:alice", ("access", "channels"))


def test_a_password_over_tls_names_the_user(realm: penstock.Realm, authority: Authority) -> None:
    url = realm.listen().replace("://", "://bob:secret@")

    with penstock.connect(f"{url}?ca={authority.file}") as session:
        assert session.access.me().user == "bob"


def test_a_realm_with_an_untrusted_certificate_is_not_used(realm: penstock.Realm) -> None:
    with pytest.raises(CannotConnect, match="its certificate is not signed by a trusted authority"):
        penstock.connect(realm.listen(), reconnect_timeout=0)


def test_a_certificate_of_another_authority_is_refused(
    realm: penstock.Realm, tmp_path: Path, authority: Authority
) -> None:
    certificate, key = Authority(tmp_path, "stranger").certificate("alice", "false-alice")
    files = f"?ca={authority.file}&certificate={certificate}&key={key}"

    with pytest.raises(CannotConnect):
        penstock.connect(realm.listen() + files, reconnect_timeout=0)


def test_unencrypted_clients_of_a_tls_port_get_no_answer(realm: penstock.Realm) -> None:
    with pytest.raises(CannotConnect):
        penstock.connect(realm.listen().replace("penstocks", "penstock"), reconnect_timeout=0)


def _names_seen(tls: Tls, trusted: Path, client: tuple[Path, Path] | None = None) -> str:
    """Shake hands with a listener in memory; gives the common name of its certificate."""
    mine = ssl.create_default_context(cafile=str(trusted))
    if client is not None:
        mine.load_cert_chain(*map(str, client))
    here, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = mine.wrap_bio(here, outgoing, server_hostname="localhost")
    server_side = tls.context.wrap_bio(outgoing, here, server_side=True)
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    subject = (client_side.getpeercert() or {})["subject"]
    seen = server_side.getpeercert() or {}
    if client is not None and not seen:
        return "client not known"
    return str(subject[0][0][1])


def test_files_are_read_again_for_new_connections(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    certificate, key = first.certificate("before", "realm")
    authorities = tmp_path / "clients.pem"
    authorities.write_bytes(first.file.read_bytes())
    tls = Tls(str(certificate), str(key), str(authorities))
    client = first.certificate("carol")
    assert _names_seen(tls, first.file, client) == "before"

    first.certificate("after", "realm")
    authorities.write_bytes(second.file.read_bytes())
    tls.reload()

    assert _names_seen(tls, first.file) == "after"
    with pytest.raises(ssl.SSLError):  # its authority is not believed any more
        _names_seen(tls, first.file, client)


def test_files_that_do_not_do_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.certificate("realm")
    tls = Tls(str(certificate), str(key))
    key.write_text("no key")

    with pytest.raises(InvalidArgument, match=r"realm\.pem"):
        tls.reload()

    assert _names_seen(tls, authority.file) == "realm"


def test_settings_that_do_not_fit_together_are_refused(folder: Path, authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match="tls_certificate is missing"):
        penstock.Realm(listen__tls_client_ca="ca.pem")
    with pytest.raises(InvalidArgument, match=r"requires listen\.tls_client_ca"):
        penstock.Realm(
            listen__tls_certificate=str(folder / "realm.pem"),
            listen__tls_key=str(folder / "realm.key"),
            listen__tls_client_required=True,
        )


@pytest.mark.process
def test_a_server_reads_its_certificate_again_on_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.certificate("before", "realm")
    monkeypatch.setenv("PENSTOCK_LISTEN_TLS_CERTIFICATE", str(certificate))
    monkeypatch.setenv("PENSTOCK_LISTEN_TLS_KEY", str(key))
    context = ssl.create_default_context(cafile=str(authority.file))
    with ServerProcess(tmp_path / "data") as server:
        url = f"{server.url}?ca={authority.file}"
        with penstock.connect(url) as session:
            channel = session.channels.create("orders")
            authority.certificate("after", "realm")
            server.signal(signal.SIGHUP)
            eventually(lambda: bool(server.logged("realm.reloaded")))

            channel.publish(b"the connection goes on")

        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            peer = secured.getpeercert() or {}

    assert peer["subject"] == ((("commonName", "after"),),)
