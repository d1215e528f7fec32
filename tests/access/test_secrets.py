"""Secrets are in no text: URLs, errors, and what Spark is told."""

from __future__ import annotations

import ssl
from itertools import product
from pathlib import Path

import pytest

import penstock
from penstock.client.connection.credentials import Credentials, tls_context
from penstock.client.connection.urls import parse_url, safe
from penstock_core.vocabulary.errors import CannotConnect, InvalidArgument
from penstock_spark.options import sink_options, source_options
from tests.access.certificates import Authority

URL = "penstocks://alice:hush%21hush@localhost:1,[::1]:2?ca=ca.pem&certificate=a.pem&key=a.key"


def test_a_url_names_user_password_addresses_and_files() -> None:
    url = parse_url(URL)

    assert (url.user, url.password, url.tls) == ("alice", "hush!hush", True)
    assert (url.ca, url.certificate, url.key) == ("ca.pem", "a.pem", "a.key")
    assert [str(address) for address in url.addresses] == ["localhost:1", "[::1]:2"]
    assert repr(url) == "RealmUrl(penstocks://alice@localhost:1,[::1]:2)"


@pytest.mark.parametrize(
    "url",
    [
        "penstock://alice:hush@",
        "penstock://alice:hush@host:port",
        "penstock://alice:hush@host?ca=x",
        "penstocks://alice:hush@host?key=x",
        "penstocks://alice:hush@host?password=x",
        "penstock://alice:hush@[::1",
        "http://alice:hush@host",
        "penstock://alice:hush?more@host",
        "penstock://alice:hush#more@host:x",
        "penstock://alice:1?hush@host",
        "penstock://alice:hu:hush?@host",
    ],
)
def test_an_invalid_url_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_url(url)

    assert "hush" not in str(refused.value)


BEGINNINGS = ("penstock://", "penstocks://", "penstock:/", "http://", "//", "", "x:", "p")
PASSWORDS = ("QZ", "Q/Z", "Q?Z", "Q@Z", "Q:Z", "Q#Z", "Q%zzZ", "Q\nZ", "Q,Z", "1Q/Z")
ENDINGS = ("@host:port", "@", "@host?colour=red", "@[::1", "", "@host:0", "@h,", "@host:1/2")


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_misspelt_url_is_shown_without_its_password(beginning: str) -> None:
    for password, ending in product(PASSWORDS, ENDINGS):
        if "@" in password and not ending:
            continue  # what follows the @ is a host, as far as anybody can tell
        for user in ("alice", ""):
            url = f"{beginning}{user}:{password}{ending}"
            with pytest.raises(InvalidArgument) as refused:
                parse_url(url)
            for text in (str(refused.value), safe(url)):
                assert not {"Q", "Z"} & set(text), url
            assert refused.value.__cause__ is None


def test_a_url_is_shown_without_its_password() -> None:
    assert safe("penstock://alice:hush@host:1/x") == "penstock://alice:***@host:1/x"
    assert safe("penstock://alice@host") == "penstock://alice@host"
    assert safe(7) == "7"


def test_spark_options_are_shown_without_the_password() -> None:
    url = "penstock://alice:hush@localhost:1"
    source = source_options({"url": url, "channel": "orders"})
    sink = sink_options({"url": url, "channel": "orders"})

    for shown in (repr(source), repr(source.where), repr(sink), str(sink.where)):
        assert "alice:***@localhost" in shown
        assert "hush" not in shown


def test_an_unreachable_realm_is_reported_without_the_password() -> None:
    with pytest.raises(CannotConnect) as refused:
        penstock.connect("penstock://alice:hush@localhost:1", reconnect_timeout=0)

    assert "hush" not in str(refused.value)


def test_arguments_take_precedence_over_the_environment() -> None:
    environment = {"PENSTOCK_USER": "bob", "PENSTOCK_PASSWORD": "b", "PENSTOCK_TOKEN": "t"}

    credentials = Credentials(parse_url("penstock://alice:a@h"), None, environment)
    named = Credentials(parse_url("penstock://alice@h"), None, environment)
    nothing = Credentials(parse_url("penstock://h"), None, environment)
    token = Credentials(parse_url("penstock://alice@h"), lambda: "fresh", environment)
    only = Credentials(parse_url("penstock://h"), None, {"PENSTOCK_TOKEN": "t"})

    assert (credentials.user, credentials.password, credentials.token()) == ("alice", "a", "")
    assert (named.user, named.password) == ("alice", "b")
    assert (nothing.user, nothing.password, nothing.has_token) == ("bob", "b", False)
    assert (token.password, token.token()) == ("", "fresh")
    assert (only.has_token, only.token(), repr(credentials)) == (True, "t", "Credentials(alice)")


def test_files_for_tls_that_do_not_do_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    missing = tmp_path / "missing.pem"
    with pytest.raises(InvalidArgument, match=r"missing\.pem of certificate authorities"):
        tls_context(parse_url(f"penstocks://h?ca={missing}"))
    with pytest.raises(InvalidArgument, match=r"certificate .*missing\.pem"):
        tls_context(parse_url(f"penstocks://h?ca={authority.file}&certificate={missing}"))

    context = tls_context(parse_url(f"penstocks://h?ca={authority.file}"))

    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_context(parse_url("penstock://h")) is None
