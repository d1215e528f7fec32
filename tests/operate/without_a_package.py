"""Run a realm in a process in which one of the packages of `scripts/packages.toml`, and those that
depend on it, cannot be imported: ``python -m tests.operate.without_a_package amqp``."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from scripts.packages import package_of, packages
from scripts.weight.source import sources_below

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("core", "client", "server")


class Missing(importlib.abc.MetaPathFinder):
    """Refuses to import modules of packages that are not installed."""

    def __init__(self, removed: set[str]) -> None:
        self._removed = removed

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] == "penstock" and package_of(fullname) in self._removed:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def removed_with(package: str) -> set[str]:
    """A package and those that depend on it, which are named after it in the table."""
    removed = {package}
    for name, entry in packages().items():
        if removed & set(entry.may_import):
            removed.add(name)
    return removed


def remove(removed: set[str], folder: Path) -> None:
    """Have the packages missing in this process, with their entry points."""
    lines = []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group, entry_points in project["entry-points"].items():
        lines.append(f"[{group}]")
        for name, place in entry_points.items():
            if package_of(place.partition(":")[0]) not in removed:
                lines.append(f"{name} = {place}")
    metadata = folder / "penstock_realm-0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    sys.path.insert(0, f"{folder}")
    sys.meta_path.insert(0, Missing(removed))


def import_the_rest() -> None:
    """Import all modules of the core, the client and the server."""
    for source in sources_below(ROOT / "src"):
        is_ours = source.module.startswith("penstock") and not source.module.endswith("__main__")
        if is_ours and package_of(source.module) in KEPT:
            importlib.import_module(source.module)


def serve() -> None:
    """Publish an event to a realm of this process, read it, and ask for its OpenAPI document."""
    import penstock

    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"1")
        assert orders.read().num_rows == 1
        with urllib.request.urlopen(f"{realm.listen_http()}/api/v1/openapi.json") as answer:
            assert answer.status == 200


def main(package: str) -> None:
    from penstock_server.cli import main as command

    removed = removed_with(package)
    with tempfile.TemporaryDirectory() as folder:
        remove(removed, Path(folder))
        import_the_rest()
        serve()
        command(["--help"])


if __name__ == "__main__":
    main(sys.argv[1])
