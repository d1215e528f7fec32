"""The object gate: who may read which file, in ranges, and what forged requests get."""

from __future__ import annotations

import hashlib
import hmac
import http.client
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web
from packages.server.tests.frontends.http.known import ANN, Known
from penstock_core.vocabulary.errors import AuthenticationFailed
from penstock_lakehouse.signatures import check_signature, signature_of
from penstock_server.frontends.http.doors import range_of

pytestmark = [pytest.mark.spec("B5")]
PATH = "iceberg/v1/namespaces/channels/tables"
FORMAT = "%Y%m%dT%H%M%SZ"


class Signer:
    """Reads files with the key of a loaded table."""

    def __init__(self, url: str, config: Mapping[str, str]) -> None:
        self.url = url
        self.key, self.secret = config["s3.access-key-id"], config["s3.secret-access-key"]
        self.at = datetime.now(UTC)

    def headers(self, method: str, path: str, query: str = "") -> dict[str, str]:
        host, time_text = urlsplit(self.url).netloc, self.at.strftime(FORMAT)
        body = hashlib.sha256(b"").hexdigest()
        signed = {"host": host, "x-amz-content-sha256": body, "x-amz-date": time_text}
        names = ";".join(signed)
        lines = [f"{name}:{value}" for name, value in signed.items()]
        canonical = "\n".join([method, path, query, *lines, "", names, body])
        scope = f"{time_text[:8]}/local/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = f"AWS4{self.secret}".encode()
        for part in (*scope.split("/"), "\n".join(["AWS4-HMAC-SHA256", time_text, scope, digest])):
            key = hmac.digest(key, part.encode(), "sha256")
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.key}/{scope}, SignedHeaders={names}, "
            f"Signature={key.hex()}"
        )
        return signed

    def ask(self, method: str, path: str, **changed: str) -> Reply:
        return send(self.url, method, path, self.headers(method, path) | changed)


def send(url: str, method: str, path: str, headers: Mapping[str, str]) -> Reply:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return Reply(answer.status, dict(answer.headers), answer.read())
    finally:
        connection.close()


def loaded(web: Web, name: str = "orders") -> dict[str, Any]:
    document: dict[str, Any] = web.get(f"{PATH}/{quote(name, safe='')}")
    return document


def path_of(location: str) -> str:
    return location.removeprefix("s3:/")


@pytest.fixture
def orders(session: penstock.Session, url: str) -> dict[str, Any]:
    channel = session.channels.create("orders")
    channel.publish_many([penstock.Event(b"%d" % n, properties={"n": n}) for n in range(100)])
    return loaded(Web(url))


def test_a_file_is_read_whole_and_in_ranges(orders: dict[str, Any], url: str) -> None:
    signer, path = Signer(url, orders["config"]), path_of(orders["metadata-location"])
    answer = signer.ask("GET", path)
    assert (answer.status, msgspec.json.decode(answer.data)) == (200, orders["metadata"])
    size = len(answer.data)

    for header, data in {
        "bytes=0-9": answer.data[:10],
        "bytes=10-": answer.data[10:],
        "bytes=-7": answer.data[-7:],
        f"bytes=0-{size + 100}": answer.data,
        f"bytes=0-{size - 1}": answer.data,
    }.items():
        part = signer.ask("GET", path, range=header)
        assert (part.status, part.data) == (206, data)
    head = signer.ask("HEAD", path)
    assert (head.status, head.headers["content-length"], head.data) == (200, str(size), b"")
    beyond = signer.ask("GET", path, range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    assert signer.ask("GET", path, range="bytes=1-2,4-5").data == answer.data


def test_nothing_is_read_without_a_valid_signature(orders: dict[str, Any], url: str) -> None:
    signer, path = Signer(url, orders["config"]), path_of(orders["metadata-location"])
    good = signer.headers("GET", path)

    def status(**changed: str) -> int:
        return send(url, "GET", path, {**good, **changed}).status

    assert status() == 200
    assert send(url, "GET", path, {}).status == 403
    assert status(authorization="Bearer x") == 403
    assert status(authorization=good["authorization"][:-1] + "0") in (403, 200)
    assert status(authorization=good["authorization"].replace(signer.key, "0" * 32)) == 403
    assert status(**{"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}) == 403
    assert send(url, "HEAD", path, good).status == 403, "the method is signed"
    assert send(url, "GET", path + "x", good).status == 403, "and the path"
    assert send(url, "GET", path + "?x=1", good).status == 403, "and the query"
    for hours in (-1, 1):
        old = Signer(url, orders["config"])
        old.at += timedelta(hours=hours)
        assert old.ask("GET", path).status == 403
    for garbage in ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=a/b/c/d/e", "AWS4 " * 2_000):
        assert status(authorization=garbage) == 403
    assert status() == 200


def test_a_refusal_is_the_xml_of_s3(orders: dict[str, Any], url: str) -> None:
    signer = Signer(url, orders["config"])
    missing = signer.ask("GET", "/penstock-tables/none%3Cx")
    assert (missing.status, missing.headers["content-type"]) == (404, "application/xml")
    assert b"<Code>NoSuchKey</Code>" in missing.data
    assert b"<x" not in missing.data
    for method in ("PUT", "POST", "DELETE"):
        assert signer.ask(method, path_of(orders["metadata-location"])).status == 405


def test_a_path_cannot_leave_the_table(orders: dict[str, Any], url: str) -> None:
    signer = Signer(url, orders["config"])
    table = path_of(orders["metadata"]["location"])
    for path in (
        "/penstock-tables/",
        "/penstock-tables/..%2F..%2Fetc%2Fpasswd",
        f"{table}/../../identity",
        f"{table}/%2e%2e/identity",
        f"{table}/data/%00",
        "/penstock-tables//etc/passwd",
    ):
        assert signer.ask("GET", path).status in (403, 404), path


@pytest.mark.slow
def test_a_table_is_loaded_by_users_who_may_read_the_channel() -> None:
    with penstock.Realm(access__mode="mandatory") as realm, realm.connect() as session:
        url = realm.listen_http()
        session.channels.create("orders").publish(b"secret")
        session.channels.create("open").publish(b"x")
        admin = Known(url, "admin", realm.access.first_password)
        admin.send("POST", "users", {"name": "ann", "password": ANN})
        for grant in (
            {"kind": "realm", "rights": ["access"]},
            {"kind": "channel", "name": "open", "rights": ["subscribe"]},
        ):
            admin.send("POST", "acl/grant", grant | {"subject": "ann@*"})
        ann = Known(url, "ann", ANN)

        assert [table["name"] for table in ann.get(PATH)["identifiers"]] == ["open"]
        refused = ann.ask("GET", f"{PATH}/orders")
        assert refused.status == 403
        assert refused.document["error"]["type"] == "ForbiddenException"
        assert ann.ask("GET", f"{PATH}/none").status == 403, "as for a channel that exists"
        assert Web(url).ask("GET", f"{PATH}/open").status == 401

        theirs, own_table = loaded(admin), loaded(ann, "open")
        signer = Signer(url, own_table["config"])
        assert signer.ask("GET", path_of(own_table["metadata-location"])).status == 200
        assert signer.ask("GET", path_of(theirs["metadata-location"])).status == 404
        admin.send("DELETE", "users/ann")
        assert signer.ask("GET", path_of(own_table["metadata-location"])).status == 403


def test_errors_of_the_catalog_have_the_form_of_iceberg(
    session: penstock.Session, url: str
) -> None:
    session.channels.create("orders")
    web = Web(url)
    missing = web.ask("GET", f"{PATH}/none")
    assert missing.document["error"]["code"] == missing.status == 404
    assert missing.document["error"]["type"] == "NoSuchTableException"
    assert web.ask("GET", "iceberg/v1/namespaces/x").status == 404
    assert web.ask("GET", "iceberg/v1/namespaces/x/tables").status == 404
    assert web.ask("HEAD", f"{PATH}/orders").status == 200
    assert web.ask("POST", PATH, {"name": "new"}).status == 405
    assert web.ask("DELETE", f"{PATH}/orders").status == 405
    assert web.ask("GET", f"{PATH}/orders", pageSize=1).status == 400
    assert web.ask("GET", PATH, pageSize=0).document["error"]["type"] == "BadRequestException"


@given(st.text(max_size=80), st.integers(0, 1 << 40))
def test_any_range_is_within_the_file(header: str, size: int) -> None:
    part = range_of(header, size)
    assert part.start >= 0
    assert part.start <= part.end or part.is_part


@given(st.from_regex(r"bytes=[0-9]{0,18}-[0-9]{0,18}", fullmatch=True), st.integers(0, 1_000))
def test_a_range_has_bytes_of_the_file_or_is_empty(header: str, size: int) -> None:
    part = range_of(header, size)
    assert (0 <= part.start <= part.end <= size) or (part.is_part and part.start == part.end)


@given(st.text(max_size=300))
def test_a_malformed_signature_is_refused(header: str) -> None:
    with pytest.raises(AuthenticationFailed):
        signature_of(header)


@given(st.text(max_size=20), st.text(max_size=40), st.text(max_size=40), st.text(max_size=20))
def test_a_forged_signature_is_refused(secret: str, path: str, query: str, at: str) -> None:
    signature = signature_of(
        "AWS4-HMAC-SHA256 Credential=k/20260504/r/s3/aws4_request, SignedHeaders=host;x-amz-date, "
        f"Signature={'0' * 64}"
    )
    for date in (at, "20260504T120000Z"):
        with pytest.raises(AuthenticationFailed):
            check_signature(
                signature,
                secret,
                "GET",
                path,
                query,
                headers={"x-amz-date": date, "host": "h"},
                now_us=1_777_896_000_000_000,
            )
