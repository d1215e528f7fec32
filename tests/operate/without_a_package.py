"""Run a realm in a workspace from which a package was removed; `tests/operate/workspace.py` makes
it."""

from __future__ import annotations

import importlib
import urllib.request
from pathlib import Path

import penstock
from penstock_server.cli import main as command
from scripts.packages import package_of, packages
from scripts.weight.source import unparsed, workspace_sources

KEPT = ("core", "client", "server")


def import_the_rest() -> None:
    """Import all modules of the core, the client and the server."""
    stand_ins = {name for entry in packages().values() for name in entry.stand_ins}
    for source in workspace_sources(Path.cwd(), unparsed):
        is_program = source.module.endswith("__main__")
        if package_of(source.module) in KEPT and not is_program and source.module not in stand_ins:
            importlib.import_module(source.module)


def serve() -> None:
    """Publish an event to a realm of this process, read it, and ask for its OpenAPI document."""
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"1")
        assert orders.read().num_rows == 1
        with urllib.request.urlopen(f"{realm.listen_http()}/api/v1/openapi.json") as answer:
            assert answer.status == 200


if __name__ == "__main__":
    import_the_rest()
    serve()
    command(["--help"])
