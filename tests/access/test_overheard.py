"""Passwords are never sent over an open network: they are refused if others could read them."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    InsecureConnection,
    InvalidArgument,
)
from penstock_core.wire.addresses import is_loopback
from penstock_server.bootstrap.self_signed import own_certificate
from penstock_server.cli.program import app
from penstock_server.frontends.http.access import Guard
from penstock_server.runtime.access.access import AccessControl
from penstock_testing.process import ServerProcess
from tests.access.realms import QUICK

AWAY = "192.0.2.7"
DAY_US = 86_400_000_000


def basic(user: str, password: str) -> dict[str, str]:
    code = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {code}", "host": "realm"}


Way = Callable[[AccessControl, str, bool], Awaitable[Principal]]


async def by_password(access: AccessControl, host: str, secure: bool) -> Principal:
    return await access.password("admin", access.first_password, host, secure=secure)


async def by_token(access: AccessControl, host: str, secure: bool) -> Principal:
    return await access.token("no.token.here", host, secure=secure)


async def by_basic(access: AccessControl, host: str, secure: bool) -> Principal:
    headers = basic("admin", access.first_password)
    return await Guard(access, is_secure=secure).identify(headers, host, None, changes=False)


async def by_bearer(access: AccessControl, host: str, secure: bool) -> Principal:
    headers = {"authorization": "Bearer no.token.here"}
    return await Guard(access, is_secure=secure).identify(headers, host, None, changes=False)


async def outcome(access: AccessControl, way: Way, host: str, secure: bool) -> str:
    try:
        return (await way(access, host, secure)).user
    except (InsecureConnection, AuthenticationFailed) as error:
        return error.code


@pytest.mark.parametrize("way", [by_password, by_token, by_basic, by_bearer])
@pytest.mark.parametrize(
    ("host", "secure", "cleartext", "is_taken"),
    [
        (AWAY, False, False, False),
        ("2001:db8::7", False, False, False),
        ("::ffff:192.0.2.7", False, False, False),
        (AWAY, True, False, True),
        (AWAY, False, True, True),
        ("127.0.0.1", False, False, True),
        ("::ffff:127.0.0.1", False, False, True),
        ("::1", False, False, True),
    ],
)
def test_a_secret_is_checked_only_on_a_private_connection(
    way: Way, host: str, secure: bool, cleartext: bool, is_taken: bool
) -> None:
    settings = QUICK | {"access__cleartext_passwords": cleartext, "access__mode": "mandatory"}
    with penstock.Realm(**settings) as realm:
        result = realm.loop.call(outcome(realm.access, way, host, secure=secure))

    looked_at = "admin" if way in (by_password, by_basic) else "authentication-failed"
    assert result == (looked_at if is_taken else "insecure-connection")


def test_the_refusal_says_what_to_do() -> None:
    with (
        penstock.Realm(access__mode="mandatory", **QUICK) as realm,
        pytest.raises(InsecureConnection) as refused,
    ):
        realm.access.check_private(AWAY, secure=False)

    assert "https, amqps or penstocks" in str(refused.value)
    assert "access.cleartext_passwords" in str(refused.value)


def own_address() -> str:
    """One that others reach this machine by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((AWAY, 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


@pytest.mark.skipif(is_loopback(own_address()), reason="this machine has no network")
def test_over_the_network_only_private_proofs_are_accepted() -> None:
    host = own_address()
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        password = realm.access.first_password
        url = realm.listen(host).replace("://", f"://admin:{password}@")
        with penstock.connect(url) as session:  # SCRAM: the password does not travel
            assert session.access.me().host == host
        web = realm.listen_http(host)
        body = json.dumps({"user": "admin", "password": password}).encode()
        forms = (
            urllib.request.Request(f"{web}/api/v1/me", headers=basic("admin", password)),
            urllib.request.Request(
                f"{web}/api/v1/login", body, {"content-type": "application/json"}
            ),
        )
        for form in forms:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(form, timeout=10)
            with refused.value as answer:
                assert answer.status == 403
                assert json.load(answer)["error"]["code"] == "insecure-connection"


# --- a certificate of the realm's own ------------------------------------------------------


def test_a_realm_makes_itself_a_certificate_that_clients_can_believe(tmp_path: Path) -> None:
    settings = QUICK | {"access__mode": "mandatory", "listen__tls_self_signed": "127.0.0.1, realm"}
    with penstock.Realm(tmp_path / "data", **settings) as realm:
        url = realm.listen().replace("://", f"://admin:{realm.access.first_password}@")
        made = tmp_path / "data" / "tls" / "realm.pem"
        with penstock.connect(f"{url}?ca={made}") as session:
            session.channels.create("orders").publish(b"over TLS")
        before = made.read_bytes()
        with pytest.raises(
            penstock.CannotConnect,
            match="its certificate is not signed by a trusted authority",
        ):
            penstock.connect(url, reconnect_timeout=0)
    with penstock.Realm(tmp_path / "data", **settings):
        assert made.read_bytes() == before

    assert url.startswith("penstocks://")
    assert (made.parent / "realm.key").stat().st_mode & 0o777 == 0o600
    assert made.parent.stat().st_mode & 0o777 == 0o700


def test_other_names_and_its_last_month_make_another_certificate(tmp_path: Path) -> None:
    def made(names: str, day: int) -> bytes:
        file, _ = own_certificate(tmp_path, names, day * DAY_US)
        return Path(file).read_bytes()

    first = made("a.example,10.0.0.1", 20_000)

    assert made("10.0.0.1, a.example", 20_790) == first
    renewed = made("a.example,10.0.0.1", 20_796)
    assert renewed != first
    assert made("b.example", 20_796) != renewed


def test_a_damaged_certificate_or_key_is_made_anew(tmp_path: Path) -> None:
    certificate, key = map(Path, own_certificate(tmp_path, "a.example", 20_000 * DAY_US))
    for broken in (certificate, key):
        broken.write_text("broken")
        own_certificate(tmp_path, "a.example", 20_000 * DAY_US)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)


@pytest.mark.parametrize(
    ("names", "said"), [(" , ", "name at least one"), ("a,\N{SNOWMAN}", "not a valid host name")]
)
def test_invalid_certificate_names_are_refused(tmp_path: Path, names: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        own_certificate(tmp_path, names, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_realm_in_memory_has_nowhere_to_keep_one() -> None:
    with pytest.raises(InvalidArgument, match="requires a data directory"):
        penstock.Realm(listen__tls_self_signed="localhost")


# --- it is said -----------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(("setting", "passwords"), [("false", "refused"), ("true", "taken")])
def test_the_start_warns_of_unencrypted_listeners(
    tmp_path: Path, setting: str, passwords: str
) -> None:
    environment = {
        "PENSTOCK_ACCESS_MODE": "mandatory",
        "PENSTOCK_ACCESS_CLEARTEXT_PASSWORDS": setting,
    }
    with ServerProcess(tmp_path, "--host", "0.0.0.0", environment=environment) as server:
        (warned,) = server.logged("network.without_tls")

    assert (warned["level"], warned["passwords"]) == ("warning", passwords)
    assert warned["hosts"] == ["0.0.0.0"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", "warning"),
        ("access.cleartext_passwords = true\n", "warning"),
        ("listen.tls_self_signed = 'realm'\n", None),
        ("listen.host = '127.0.0.1'\n", None),
    ],
)
def test_doctor_warns_of_unencrypted_listeners(
    tmp_path: Path, more: str, status: str | None
) -> None:
    file = tmp_path / "realm.toml"
    host = "" if "listen.host" in more else "listen.host = '0.0.0.0'\n"
    file.write_text(
        f"listen.port = 0\nhttp.enabled = false\naccess.mode = 'mandatory'\n{host}{more}"
    )

    shown = CliRunner().invoke(app, ["doctor", "--settings", str(file), "--format", "json"])

    checks = {check["name"]: check for check in json.loads(shown.stdout)["checks"]}
    assert (checks["network"]["status"] if "network" in checks else None) == status
    if "cleartext" in more:
        assert "and so can passwords and tokens" in checks["network"]["found"]
