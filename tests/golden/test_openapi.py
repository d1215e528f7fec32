"""The document of the HTTP API says what it has always said: each operation and each schema.

What is added, or changed on purpose, is taken over by ``python -m tests.golden.test_openapi``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock_server.frontends.http.openapi import document
from penstock_server.frontends.http.routes import TABLE

GOLDEN = Path(__file__).parent / "openapi.json"


def parts() -> dict[str, Any]:
    """Each part of the document, by where it stands in it."""
    description = msgspec.json.decode(msgspec.json.encode(document(TABLE, "0")))
    paths, components = description.pop("paths"), description["components"].pop("schemas")
    return {
        "": description,
        **{f"{method} {path}": way for path, ways in paths.items() for method, way in ways.items()},
        **{f"schema {name}": schema for name, schema in components.items()},
    }


def test_the_document_is_as_it_was() -> None:
    golden, now = msgspec.json.decode(GOLDEN.read_bytes()), parts()

    assert now.keys() == golden.keys()
    for name, part in golden.items():
        assert now[name] == part, name


if __name__ == "__main__":
    lines = [
        b"%s: %s" % (msgspec.json.encode(name), msgspec.json.encode(part, order="sorted"))
        for name, part in sorted(parts().items())
    ]
    GOLDEN.write_bytes(b"{\n" + b",\n".join(lines) + b"\n}\n")
