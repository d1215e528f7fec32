"""Realms with access control, whose settings make sign-ins fast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import penstock
from penstock_core.api.requests import Request
from tests.access.certificates import Authority

QUICK: dict[str, Any] = {
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
    "access__failure_delay_s": 0.0,
}


def requests_in(package: ModuleType) -> set[type[Request[Any]]]:
    """Return the requests of a realm that a package can send: those that its modules import."""
    requests = set()
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                requests.add(value)
    return requests


def authority_in(folder: Path) -> Authority:
    """Return an authority that has signed the certificates of a realm and of its user ``alice``."""
    made = Authority(folder, "authority")
    made.certificate("realm")
    made.certificate("alice")
    return made


@contextmanager
def realm_with_tls(folder: Path, authority: Authority) -> Iterator[penstock.Realm]:
    """A realm with TLS: ``bob`` has a password, ``alice`` a certificate and the right to create
    channels."""
    with penstock.Realm(
        access__mode="mandatory",
        listen__tls_certificate=str(folder / "realm.pem"),
        listen__tls_key=str(folder / "realm.key"),
        listen__tls_client_ca=str(authority.file),
        **QUICK,
    ) as realm:
        with realm.connect() as session:
            session.access.create_user("bob", "secret")
            session.access.grant("bob@*", "access")
            session.access.grant("certificate:alice@*", "access", "channels")
        yield realm
