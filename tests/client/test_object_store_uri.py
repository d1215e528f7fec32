"""URIs of places: what may be one, and what of it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.copies.object_store_uri import check_place, place, shown, without_secrets
from penstock.core.vocabulary.errors import InvalidArgument

SECRETS = ("AKIA7", "s3cr3t/x", "s3cr3t%2Fx", "t0ken")


@pytest.mark.parametrize(
    ("uri", "seen"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://AKIA7:s3cr3t%2Fx@bucket/prefix?region=eu", "s3://***@bucket/prefix"),
        ("s3://AKIA7:s3cr3t/x@bucket/prefix", "s3://***@bucket/prefix"),
        ("s3://bucket/p?access_key=AKIA7&secret_key=s3cr3t%2Fx", "s3://bucket/p"),
        ("s3://AKIA7:s3cr3t/x?t0ken@bucket/prefix", "s3://***"),
        ("s3://bucket/p?secret_key=s3cr3t/x@t0ken", "s3://***"),
        ("/mnt/realm", "/mnt/realm"),
    ],
)
def test_who_asks_is_not_shown(uri: str, seen: str) -> None:
    assert shown(uri) == seen
    assert not any(secret in without_secrets(f"cannot parse '{uri}'", uri) for secret in SECRETS)


def test_parts_of_a_uri_are_not_shown_either() -> None:
    uri = "s3://AKIA7:s3cr3t%2Fx@bucket/p?session_token=t0ken&scheme=http"
    text = "AKIA7 with s3cr3t/x and t0ken may not read bucket/p by http"

    assert without_secrets(text, uri) == "*** with *** and *** may not read bucket/p by http"


def test_a_folder_is_a_place(tmp_path: Path) -> None:
    for uri in (f"{tmp_path}", f"file://{tmp_path}/"):
        found = place(uri, "option files")
        assert found.path("segments/a") == f"{tmp_path}/segments/a"
        assert found.shown == uri


@pytest.mark.parametrize("uri", ["realm", "./realm", "s3:bucket", "", "://x", "C:\\realm"])
def test_what_is_no_place_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument, match=r"option files is .* s3://bucket/prefix"):
        check_place(uri, "option files")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("ftp://AKIA7:t0ken@host/realm", r"--to ftp://\*\*\*@host/realm cannot be used: Unrec"),
        ("s3://bucket/p?secret_key=t0ken&wrong=1", "--to s3://bucket/p cannot be used: .*'wrong'"),
    ],
)
def test_a_place_that_cannot_be_used_says_why_and_nothing_secret(uri: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as raised:
        place(uri, "--to")
    assert not any(secret in str(raised.value) for secret in SECRETS)
    assert raised.value.__cause__ is None
