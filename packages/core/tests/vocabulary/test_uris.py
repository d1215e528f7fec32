"""URIs for display, without user names and secrets."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.uris import below, shown, without_secrets

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


@pytest.mark.parametrize(
    ("uri", "public_uri"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix/shard-0"),
        ("s3://AKIA7:s3cr3t%2Fx@bucket/p/", "s3://bucket/p/shard-0"),
        (
            "s3://AKIA7:s3cr3t/x@bucket/p?region=eu&session_token=t0ken&scheme=http",
            "s3://bucket/p/shard-0?region=eu&scheme=http",
        ),
        ("file:///shared/folder", "file:///shared/folder/shard-0"),
        ("s3://AKIA7:s3cr3t/x?t0ken@bucket/prefix", ""),
    ],
)
def test_what_lies_below_a_place_is_named_without_who_asks(uri: str, public_uri: str) -> None:
    assert below(uri, "shard-0") == public_uri
