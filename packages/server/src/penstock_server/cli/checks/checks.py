"""The checks of ``penstock doctor``, one function for each subject."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from penstock_core.columns.schema.moments import moment_of
from penstock_core.vocabulary.errors import CannotConnect, PenstockError
from penstock_server.cli.shared.output import size

if TYPE_CHECKING:
    from penstock_server.settings import Settings

Status = Literal["ok", "warning", "failed"]

DISK_WARNING: Final = 2 << 30
"""Bytes of free space below which a warning is given: the journal alone takes 256 MiB, and more."""
DISK_FAILED: Final = 64 << 20
"""Bytes of free space below which a realm would refuse events almost at once."""
FILES_ASIDE: Final = 1_024
"""Open files that a realm needs besides its connections."""
EXPIRES_SOON: Final = timedelta(days=21)
ANSWER_S: Final = 3.0
"""Seconds that a port may take to answer."""

AMQP_ENGINE: Final = "python-qpid-proton"
_NEEDED: Final = ("msgspec", "numpy", "pyarrow", "structlog", "typer", "uvicorn", "xxhash")
_EXTRAS: Final = {"uvloop": "", "pyspark": "spark", "protobuf": "protobuf", "deltalake": "spark"}
_BUILT: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""An earlier date than this means that the clock is wrong."""


class Check(Struct, frozen=True):
    """The result of one check."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """What to do about it; empty if nothing."""


def installation() -> Iterator[Check]:
    """Python, this package, and what it needs."""
    from penstock_core.version import __version__

    python = sys.version.split()[0]
    yield Check("python", "ok", f"{python}, {sys.executable}")
    yield Check("penstock", "ok", __version__)
    missing = [name for name in _NEEDED if version_of(name) is None]
    if missing:
        again = f"{sys.executable} -m pip install --force-reinstall penstock-realm"
        remedy = f"install it again: {again}"
        yield Check("packages", "failed", f"not there: {', '.join(missing)}", remedy=remedy)
    else:
        known = (*_NEEDED, *_EXTRAS)
        listed = [f"{name} {found}" for name in known if (found := version_of(name)) is not None]
        yield Check("packages", "ok", ", ".join(listed))
    if version_of("uvloop") is None:
        yield Check(
            "event loop", "warning", "asyncio's own", remedy="uvloop is faster: pip install uvloop"
        )
    yield amqp(version_of(AMQP_ENGINE))


def amqp(version: str | None) -> Check:
    """Whether a realm can serve AMQP with this version of the engine, None without one."""
    if version is None:
        return Check("amqp", "ok", "not installed; pip install 'penstock-realm[amqp]' compiles it")
    return Check("amqp", "ok", f"{AMQP_ENGINE} {version}")


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def data_directory(directory: Path) -> Iterator[Check]:
    """Whether a realm can be served from a directory; nothing is made or changed in it."""
    from penstock_server.bootstrap import inspect_directory

    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        yield Check("data", "failed", f"{existing} is a file", remedy="name a directory")
        return
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        remedy = "let the user of the realm write there, or name another directory"
        yield Check("data", "failed", f"{existing} cannot be written", remedy=remedy)
        return
    yield _space(existing)
    if existing != directory:
        yield Check("data", "ok", f"{directory} is not there; `penstock serve` makes it")
        return
    try:
        look = inspect_directory(directory)
    except PenstockError as error:
        yield Check("data", "failed", str(error), remedy="check its owner and its disk")
        return
    if look.others:
        shown = ", ".join(look.others[:5])
        remedy = "name an empty directory, or one that is not there yet"
        yield Check(
            "data",
            "failed",
            f"{directory} is not empty and is not the data directory of a realm: {shown}",
            remedy=remedy,
        )
        return
    if not look.is_realm:
        yield Check("data", "ok", f"{directory} is empty; a realm can begin there")
        return
    yield format_of(directory, look.format, look.format_max)
    yield _openness(directory)
    yield _lock(look.holder)


def _openness(directory: Path) -> Check:
    from penstock_server.bootstrap import openness

    found = openness(directory)
    mode = f"{directory.stat().st_mode & 0o777:04o}"
    if found:
        remedy = f"take it from them: chmod g-w,o= {directory}"
        return Check(
            "permissions", "warning", f"{directory} has mode {mode}: {found}", remedy=remedy
        )
    return Check("permissions", "ok", f"mode {mode}")


def _space(directory: Path) -> Check:
    free = shutil.disk_usage(directory).free
    found = f"{size(free)} free at {directory}"
    if free < DISK_FAILED:
        return Check(
            "disk", "failed", found, remedy="make room: a realm refuses events on a full disk"
        )
    if free < DISK_WARNING:
        return Check("disk", "warning", found, remedy="make room, or lower limits.unsealed_bytes")
    return Check("disk", "ok", found)


def format_of(directory: Path, found: int | None, newest: int) -> Check:
    if found is None:
        remedy = f"see `penstock store verify {directory}`; restore registry/ from a backup"
        return Check("format", "failed", "the record of the format cannot be read", remedy=remedy)
    if found > newest:
        remedy = "run the newer version that wrote it"
        return Check(
            "format", "failed", f"{found}; this version reads up to {newest}", remedy=remedy
        )
    if found < newest:
        remedy = "back it up first: from its first start on, older versions cannot read it"
        return Check("format", "warning", f"{found}; this version makes it {newest}", remedy=remedy)
    return Check("format", "ok", str(found))


def _lock(holder: str) -> Check:
    if holder:
        return Check("lock", "ok", f"in use by {holder}; a second realm would be refused")
    return Check("lock", "ok", "no realm has it open")


def ports(settings: Settings) -> Iterator[Check]:
    """Whether the realm can listen, or listens already."""
    listen, http_ = settings.listen, settings.http
    secure = bool(listen.tls_certificate or listen.tls_self_signed)
    scheme = "penstocks" if secure else "penstock"
    yield _port(
        "port",
        listen.host,
        listen.port,
        option="--port",
        answers=lambda: _realm(scheme, listen.host, listen.port),
    )
    if http_.enabled:
        from penstock_server.settings import HTTP_PORT

        host = http_.host or listen.host
        port = HTTP_PORT if http_.port is None else http_.port
        yield _port(
            "http port",
            host,
            port,
            option="--http-port",
            answers=lambda: _health(host, port, secure=secure),
        )


def _port(name: str, host: str, port: int, option: str, answers: Callable[[], str]) -> Check:
    if port == 0:
        return Check(name, "ok", "any free one")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        who = answers()
        if who:
            return Check(name, "ok", f"{host}:{port}: {who}")
        remedy = f"end what has it, or take another one: penstock serve {option} N"
        return Check(name, "failed", f"{host}:{port}: {error.strerror or error}", remedy=remedy)
    return Check(name, "ok", f"{host}:{port} is free")


def _realm(scheme: str, host: str, port: int) -> str:
    """The realm that answers; empty if none does."""
    from penstock.client.sync.sync import connect

    place = "localhost" if host in ("0.0.0.0", "::", "") else host
    try:
        with connect(f"{scheme}://{place}:{port}", reconnect_timeout=0) as opened:
            said = opened.info()
            return f"realm {said.name}, version {said.version}, answers"
    except CannotConnect:
        return ""
    except PenstockError as error:  # it speaks our protocol, and refused us
        return f"a realm answers: {error}"


def _health(host: str, port: int, *, secure: bool) -> str:
    from penstock_server.cli.checks import probing

    place = probing.Endpoint(probing.near(host), port, secure)
    answer = probing.over_http(place, "/health", ANSWER_S)
    return f"a realm answers: {answer.said}" if answer.is_good else ""


def file_limit(settings: Settings) -> Iterator[Check]:
    """Whether the limit of open files allows as many connections as the settings do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.listen.connections_max + FILES_ASIDE
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        shown = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        yield Check("open files", "ok", f"{shown}, and {wanted:,} are wanted")
        return
    remedy = f"raise it (LimitNOFILE={wanted} in a unit), or lower listen.connections_max"
    yield Check(
        "open files", "warning", f"{hard:,} are allowed, {wanted:,} are wanted", remedy=remedy
    )


def clock(directory: Path | None) -> Iterator[Check]:
    """Whether the clock is plausible: TTLs, schedules and ages depend on it."""
    from penstock_server.runtime.writer.clock import SystemClock

    now = moment_of(SystemClock().now_us())
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    remedy = "set it, and keep it right (chrony, systemd-timesyncd)"
    if now < _BUILT:
        yield Check("clock", "failed", found, remedy=remedy)
        return
    newest = max(_changed(directory), default=now) if directory is not None else now
    if newest > now + timedelta(minutes=1):
        written = f"{found}; the data directory was written at {newest:%Y-%m-%d %H:%M:%S}"
        yield Check("clock", "failed", written, remedy=remedy)
        return
    yield Check("clock", "ok", found)


def _changed(directory: Path) -> Iterable[datetime]:
    for file in (directory / "journal").glob("*.log"):
        yield datetime.fromtimestamp(file.stat().st_mtime, UTC)


def eavesdroppers(settings: Settings) -> Iterator[Check]:
    """Whether somebody on the network could read passwords and events."""
    from penstock_core.wire.addresses import is_loopback

    listen, access = settings.listen, settings.access
    hosts = {listen.host, settings.http.host or listen.host}
    open_ = ", ".join(sorted(host for host in hosts if not is_loopback(host)))
    if not open_ or listen.tls_certificate or listen.tls_self_signed:
        return
    what = f"{open_} without TLS: events can be read on the way"
    remedy = "name listen.tls_certificate and listen.tls_key, or listen.tls_self_signed"
    if access.cleartext_passwords:
        yield Check(
            "network", "warning", f"{what}, and passwords and tokens as well", remedy=remedy
        )
    else:
        yield Check(
            "network", "warning", f"{what}; passwords and tokens are refused there", remedy=remedy
        )


def certificates(settings: Settings) -> Iterator[Check]:
    """Whether the files for TLS can be used, and for how long."""
    listen = settings.listen
    if not listen.tls_certificate:
        return
    from penstock_server.frontends.shared.tls import Tls

    try:
        Tls(
            listen.tls_certificate,
            listen.tls_key,
            listen.tls_client_ca,
            client_required=listen.tls_client_required,
            client_revoked=listen.tls_client_revoked,
        )
    except PenstockError as error:
        yield Check(
            "tls", "failed", str(error), remedy="mend the file, or its path in the settings"
        )
        return
    yield _expiry("tls certificate", Path(listen.tls_certificate), first_only=True)
    if listen.tls_client_ca:
        yield _expiry("tls authorities", Path(listen.tls_client_ca), first_only=False)


def _expiry(name: str, file: Path, *, first_only: bool) -> Check:
    from cryptography import x509

    from penstock_server.runtime.writer.clock import SystemClock

    now = moment_of(SystemClock().now_us())
    found = x509.load_pem_x509_certificates(file.read_bytes())
    ends = min(each.not_valid_after_utc for each in (found[:1] if first_only else found))
    begins = max(each.not_valid_before_utc for each in (found[:1] if first_only else found))
    remedy = "renew it; SIGHUP makes a running realm read it again"
    if ends <= now:
        return Check(name, "failed", f"{file} ended {ends:%Y-%m-%d}", remedy=remedy)
    if begins > now:
        return Check(name, "failed", f"{file} begins {begins:%Y-%m-%d}", remedy="check the clock")
    until = f"{file}, good until {ends:%Y-%m-%d}"
    return Check(name, "warning" if ends < now + EXPIRES_SOON else "ok", until, remedy=remedy)
