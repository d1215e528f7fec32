"""Client certificates end: by their own date, and by the list of who has issued them (SEM A5)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from typer.testing import CliRunner

import penstock
from packages.client.tests.patience import eventually
from penstock_core.vocabulary.errors import AuthenticationFailed, CannotConnect, InvalidArgument
from penstock_server.cli.program import app
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.access import ends_us, issued_as
from penstock_server.serving.lifecycle import reload
from penstock_server.storage.secrecy import mend, openness
from tests.access.certificates import Authority
from tests.access.realms import QUICK, authority_in

pytestmark = pytest.mark.spec("A5")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = authority_in(tmp_path)
    made.certificate("bob")
    made.revoked()
    return made


@pytest.fixture
def realm(tmp_path: Path, authority: Authority) -> Iterator[penstock.Realm]:
    with penstock.Realm(
        access__mode="mandatory",
        listen__tls_certificate=str(tmp_path / "realm.pem"),
        listen__tls_key=str(tmp_path / "realm.key"),
        listen__tls_client_ca=str(authority.file),
        listen__tls_client_revoked=str(tmp_path / "revoked.pem"),
        **QUICK,
    ) as realm:
        with realm.connect() as session:
            session.access.grant("*@*", "access")
        yield realm


def connected(realm: penstock.Realm, folder: Path, user: str) -> penstock.Session:
    files = (
        f"?ca={folder / 'authority.pem'}&certificate={folder / user}.pem&key={folder / user}.key"
    )
    return penstock.connect(realm.listen() + files, reconnect_timeout=0)


async def reload_(realm: penstock.Realm) -> None:
    reload(realm.running, realm.listener)


def test_a_revoked_certificate_ends_its_sessions_and_opens_no_new_one(
    realm: penstock.Realm, authority: Authority, tmp_path: Path
) -> None:
    with connected(realm, tmp_path, "alice") as alice, connected(realm, tmp_path, "bob") as bob:
        assert (alice.access.me().user, bob.access.me().user) == (
            "certificate:alice",
            "certificate:bob",
        )
        authority.revoked(tmp_path / "alice.pem")
        realm.loop.call(reload_(realm))

        with pytest.raises(CannotConnect, match="the connection was lost"):  # nor back again
            eventually(lambda: alice.info() is None)
        assert bob.access.me().user == "certificate:bob"

    with pytest.raises(CannotConnect):
        connected(realm, tmp_path, "alice")
    authority.certificate("alice")  # a new one of the same user is another certificate
    with connected(realm, tmp_path, "alice") as alice:
        assert alice.access.me().user == "certificate:alice"


def peer_of(path: Path) -> dict[str, object]:
    """Return the fields of a verified certificate as ``ssl`` has them."""
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return {
        "subject": ((("commonName", "alice"),),),
        "issuer": ((("commonName", "authority"),),),
        "serialNumber": f"{certificate.serial_number:X}",
        "notAfter": certificate.not_valid_after_utc.strftime("%b %d %H:%M:%S %Y GMT"),
    }


def test_a_session_ends_with_its_certificate(
    realm: penstock.Realm, authority: Authority, tmp_path: Path
) -> None:
    peer = peer_of(tmp_path / "alice.pem")
    principal = realm.access.certificate(peer, "10.0.0.1")
    assert principal is not None
    ends = x509.load_pem_x509_certificate((tmp_path / "alice.pem").read_bytes())
    ends_at_us = int(ends.not_valid_after_utc.timestamp()) * 1_000_000

    assert principal.until_us == ends_us(peer) == ends_at_us
    realm.access.check_still(principal, ends_at_us)
    with pytest.raises(AuthenticationFailed, match="the certificate has expired"):
        realm.access.check_still(principal, ends_at_us + 1)


def test_a_connection_kept_open_past_its_certificate_loses_its_user(
    realm: penstock.Realm, tmp_path: Path, authority: Authority
) -> None:
    """An HTTP connection shows its certificate once, and is asked at each request."""
    peer = peer_of(tmp_path / "alice.pem") | {"notAfter": "Jan  1 00:00:00 2020 GMT"}
    with pytest.raises(AuthenticationFailed, match="the certificate has expired"):
        realm.access.certificate(peer, "10.0.0.1")

    good = peer_of(tmp_path / "alice.pem")
    realm.loop.call(revoke_(realm, frozenset({issued_as(good)})))
    with pytest.raises(AuthenticationFailed, match="the certificate was revoked"):
        realm.access.certificate(good, "10.0.0.1")


async def revoke_(realm: penstock.Realm, certificates: frozenset[tuple[str, ...]]) -> None:
    realm.access.revoke(certificates)


def test_lists_name_certificates_as_handshakes_do(authority: Authority, tmp_path: Path) -> None:
    authority.revoked(tmp_path / "alice.pem", tmp_path / "bob.pem")
    tls = Tls(
        str(tmp_path / "realm.pem"),
        str(tmp_path / "realm.key"),
        str(authority.file),
        client_revoked=str(tmp_path / "revoked.pem"),
    )

    assert tls.revoked == {
        issued_as(peer_of(tmp_path / f"{name}.pem")) for name in ("alice", "bob")
    }


@pytest.mark.parametrize(
    ("content", "said"), [("", "revocation lists"), ("nothing", "revocation lists")]
)
def test_an_invalid_revocation_list_is_refused(
    authority: Authority, tmp_path: Path, content: str, said: str
) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text(content)
    files = (str(tmp_path / "realm.pem"), str(tmp_path / "realm.key"))

    with pytest.raises(InvalidArgument, match=said):
        Tls(*files, str(authority.file), client_revoked=str(bad))
    with pytest.raises(InvalidArgument, match=r"requires listen\.tls_client_ca"):
        Tls(*files, client_revoked=str(tmp_path / "revoked.pem"))


@pytest.mark.parametrize(
    ("mode", "exposure"),
    [
        (0o700, ""),
        (0o750, ""),
        (0o755, "every user may read it"),
        (0o770, "its group may write to it"),
        (0o777, "its group may write to it, every user may write to it"),
    ],
)
def test_an_open_data_directory_is_warned_of(tmp_path: Path, mode: int, exposure: str) -> None:
    data = tmp_path / "data"
    with penstock.Realm(data):
        pass
    os.chmod(data, mode)

    with structlog.testing.capture_logs() as logged:
        mend(str(data))
    shown = CliRunner().invoke(app, ["doctor", "--data", str(data), "--format", "json"])

    assert openness(data) == exposure
    warned = [line["others"] for line in logged if line["event"] == "secrets.open_directory"]
    assert warned == ([exposure] if exposure else [])
    checks = {check["name"]: check for check in json.loads(shown.stdout)["checks"]}
    assert checks["permissions"]["status"] == ("warning" if exposure else "ok")
