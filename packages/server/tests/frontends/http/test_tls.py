"""HTTPS and client certificates, signed by an authority of the test's own (SEM A5)."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.server.tests.frontends.http.asking import Web
from tests.access.certificates import Authority
from tests.access.realms import authority_in, realm_with_tls

pytestmark = pytest.mark.spec("A5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return authority_in(folder)


@pytest.fixture(scope="module")
def url(folder: Path, authority: Authority) -> Iterator[str]:
    with realm_with_tls(folder, authority) as realm:
        yield realm.listen_http()


def trusting(authority: Authority, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    mine = ssl.create_default_context(cafile=str(authority.file))
    if certificate is not None:
        mine.load_cert_chain(*map(str, certificate))
    return mine


def test_a_client_certificate_names_the_user(url: str, folder: Path, authority: Authority) -> None:
    assert url.startswith("https://")
    web = Web(url, trusting(authority, (folder / "alice.pem", folder / "alice.key")))

    assert web.get("me")["user"] == "certificate:alice"
    assert web.send("POST", "channels", {"name": "of-alice"})["name"] == "of-alice"
    with web.watching("channels/of-alice/live") as events:
        web.send("POST", "channels/of-alice/events", {"data": "over TLS"})
        assert next(events)[1]["data"] == "over TLS"


def test_a_password_names_the_user_and_the_cookie_stays_on_https(
    url: str, authority: Authority
) -> None:
    web = Web(url, trusting(authority))
    basic = base64.b64encode(b"bob:secret").decode()

    named = web.ask("GET", "me", headers={"authorization": f"Basic {basic}"})
    opened = web.ask("POST", "login", {"user": "bob", "password": "secret"})

    assert named.document["user"] == "bob"
    assert "; Secure" in opened.headers["set-cookie"]
    assert opened.headers["set-cookie"].startswith("__Host-penstock_session_")
    assert "max-age=31536000" in named.headers["strict-transport-security"]
    assert web.ask("GET", "realm").status == 401


def test_a_password_wins_over_a_certificate(url: str, folder: Path, authority: Authority) -> None:
    web = Web(url, trusting(authority, (folder / "alice.pem", folder / "alice.key")))
    basic = base64.b64encode(b"bob:secret").decode()

    named = web.ask("GET", "me", headers={"authorization": f"Basic {basic}"})
    wrong = web.ask("GET", "me", headers={"authorization": "Basic " + "Ym9iOnh4"})

    assert named.document["user"] == "bob"
    assert (wrong.status, wrong.code) == (401, "authentication-failed")


def test_a_certificate_of_another_authority_is_not_believed(
    url: str, tmp_path: Path, authority: Authority
) -> None:
    false = Authority(tmp_path, "stranger").certificate("alice", "false-alice")
    web = Web(url, trusting(authority, false))

    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        web.ask("GET", "me")


def test_a_realm_with_an_untrusted_certificate_is_refused(url: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Web(url, ssl.create_default_context()).ask("GET", "/health")


def test_clients_without_tls_get_no_answer(url: str) -> None:
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        Web(url).ask("GET", "/health")
