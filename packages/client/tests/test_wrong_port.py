"""Error texts for URLs with a wrong port or scheme, or without the certificate authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("realm")


@pytest.fixture(scope="module")
def safe(directory: Path) -> Iterator[penstock.Realm]:
    with penstock.Realm(directory, listen__tls_self_signed="localhost") as realm:
        yield realm


def port_of(url: str) -> str:
    return url.rstrip("/").rpartition(":")[2]


def refusal(url: str) -> str:
    with pytest.raises(penstock.CannotConnect) as refused:
        penstock.connect(url, reconnect_timeout=0)
    return str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["penstock", "penstocks"])
def test_the_port_of_the_console_is_recognized(realm: penstock.Realm, scheme: str) -> None:
    error_text = refusal(f"{scheme}://127.0.0.1:{port_of(realm.listen_http())}")

    assert "an HTTP server answers there, such as the web console" in error_text
    assert "penstock serve" not in error_text


@pytest.mark.slow
def test_a_port_that_speaks_tls_is_named(safe: penstock.Realm) -> None:
    port = port_of(safe.listen())

    error_text = refusal(f"penstock://localhost:{port}")

    assert f"the port uses TLS; connect with penstocks://localhost:{port}" in error_text
    assert "?ca=FILE" in error_text


def test_a_port_without_tls_is_named(realm: penstock.Realm) -> None:
    port = port_of(realm.listen())

    error_text = refusal(f"penstocks://127.0.0.1:{port}")

    assert f"the port does not use TLS; connect with penstock://127.0.0.1:{port}" in error_text


@pytest.mark.slow
def test_an_authority_that_is_not_known_has_to_be_named(safe: penstock.Realm) -> None:
    port = port_of(safe.listen())

    error_text = refusal(f"penstocks://localhost:{port}")

    assert "not signed by a trusted authority" in error_text
    assert f"penstocks://localhost:{port}?ca=FILE" in error_text


@pytest.mark.slow
def test_a_certificate_for_another_host_is_named(safe: penstock.Realm, directory: Path) -> None:
    authority = next(directory.rglob("realm.pem"))

    error_text = refusal(
        f"penstocks://127.0.0.2:{port_of(safe.listen('127.0.0.2'))}?ca={authority}"
    )

    assert "its certificate is not for 127.0.0.2" in error_text


def test_where_nobody_listens_the_server_is_to_be_started() -> None:
    assert "start it with: penstock serve" in refusal("penstock://127.0.0.1:1")
