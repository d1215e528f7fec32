"""URIs of places: what may be one, and what of it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.copies.object_store_uri import check_place, place
from penstock_core.vocabulary.errors import InvalidArgument

SECRETS = ("AKIA7", "s3cr3t/x", "s3cr3t%2Fx", "t0ken")


def test_a_folder_is_a_place(tmp_path: Path) -> None:
    for uri in (f"{tmp_path}", f"file://{tmp_path}/"):
        location = place(uri, "option files")
        assert location.path("segments/a") == f"{tmp_path}/segments/a"
        assert location.shown == uri


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
