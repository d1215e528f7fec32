"""The checks of ``penstock doctor``, with one function per subject."""

from __future__ import annotations

import importlib.metadata
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
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
"""Bytes of free space below which the check warns; the journal alone needs 256 MiB or more."""
DISK_FAILED: Final = 64 << 20
"""Bytes of free space below which the check fails: a realm would soon refuse events."""
OTHER_FILES: Final = 1_024
"""Open files that a realm needs in addition to its connections."""
EXPIRES_SOON: Final = timedelta(days=21)
"""The check warns if a certificate expires within this time."""
ANSWER_S: Final = 3.0
"""Seconds to wait for the answer of a port."""

AMQP_ENGINE: Final = "python-qpid-proton"
_NEEDED: Final = ("msgspec", "numpy", "pyarrow", "structlog", "typer", "uvicorn", "xxhash")
_ROOTS: Final = ("penstock-realm", "penstock-server")
"""Distributions whose requirements lead to all parts of a realm. The first one may be missing."""
_OWN_PREFIX: Final = "penstock-"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
"""Name at the beginning of a requirement."""
_BUILT: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""An earlier time than this proves that the clock is wrong."""


class Check(Struct, frozen=True):
    """The result of one check."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """Advice to solve the problem; empty without a problem."""


def installation() -> Iterator[Check]:
    """Yield the checks of Python, this package and its dependencies."""
    from penstock_core.version import __version__

    python = sys.version.split()[0]
    yield Check("python", "ok", f"{python}, {sys.executable}")
    yield Check("penstock", "ok", __version__)
    missing = [name for name in _NEEDED if version_of(name) is None]
    if missing:
        command = f"{sys.executable} -m pip install --force-reinstall penstock-realm"
        remedy = f"install Penstock again: {command}"
        yield Check("packages", "failed", f"missing: {', '.join(missing)}", remedy=remedy)
    else:
        versions = [
            f"{name} {version}"
            for name in dict.fromkeys((*_NEEDED, *required_packages()))
            if (version := version_of(name)) is not None
        ]
        yield Check("packages", "ok", ", ".join(versions))
    if version_of("uvloop") is None:
        yield Check(
            "event loop", "warning", "asyncio's own", remedy="uvloop is faster: pip install uvloop"
        )
    yield amqp(version_of(AMQP_ENGINE))


def amqp(version: str | None) -> Check:
    """Check whether a realm can serve AMQP; ``version`` is that of the AMQP engine, None if the
    engine is not installed."""
    if version is None:
        return Check("amqp", "ok", "not installed; pip install 'penstock-realm[amqp]' compiles it")
    return Check("amqp", "ok", f"{AMQP_ENGINE} {version}")


def required_packages() -> Sequence[str]:
    """Return the sorted names of the other projects' packages that the installed distributions of
    Penstock require, including those of their extras."""
    names: set[str] = set()
    waiting, visited = list(_ROOTS), set(_ROOTS)
    while waiting:
        try:
            requirements = importlib.metadata.requires(waiting.pop()) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for match in filter(None, map(_NAME.match, requirements)):
            name = match[0].lower()
            if not name.startswith(_OWN_PREFIX):
                names.add(name)
            elif name not in visited:
                visited.add(name)
                waiting.append(name)
    return sorted(names)


def version_of(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def data_directory(directory: Path) -> Iterator[Check]:
    """Yield the checks whether a realm can use a data directory; the directory is not changed."""
    from penstock_server.bootstrap import inspect_directory

    existing = directory
    # The directory need not exist yet; `penstock serve` then creates it below the nearest existing
    # one.
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        yield Check("data", "failed", f"{existing} is a file", remedy="name a directory")
        return
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        remedy = "make it writable for the realm's user, or name another directory"
        yield Check("data", "failed", f"{existing} cannot be written", remedy=remedy)
        return
    yield _space(existing)
    if existing != directory:
        yield Check("data", "ok", f"{directory} does not exist; `penstock serve` creates it")
        return
    try:
        content = inspect_directory(directory)
    except PenstockError as error:
        yield Check("data", "failed", str(error), remedy="check its owner and its disk")
        return
    if content.foreign_files:
        shown = ", ".join(content.foreign_files[:5])
        remedy = "name an empty directory or one that does not exist yet"
        yield Check(
            "data",
            "failed",
            f"{directory} is not empty and is not the data directory of a realm: {shown}",
            remedy=remedy,
        )
        return
    if not content.is_realm:
        yield Check("data", "ok", f"{directory} is empty; a realm can start there")
        return
    yield format_of(directory, content.format, content.format_max)
    yield _openness(directory)
    yield _lock(content.holder)


def _openness(directory: Path) -> Check:
    """Check that other users of the machine have no access to the data directory."""
    from penstock_server.bootstrap import openness

    exposure = openness(directory)
    mode = f"{directory.stat().st_mode & 0o777:04o}"
    if exposure:
        remedy = f"remove these permissions: chmod g-w,o= {directory}"
        return Check(
            "permissions", "warning", f"{directory} has mode {mode}: {exposure}", remedy=remedy
        )
    return Check("permissions", "ok", f"mode {mode}")


def _space(directory: Path) -> Check:
    """Check that the disk of the data directory has free space."""
    free = shutil.disk_usage(directory).free
    free_text = f"{size(free)} free at {directory}"
    if free < DISK_FAILED:
        return Check(
            "disk", "failed", free_text, remedy="free space: a realm refuses events on a full disk"
        )
    if free < DISK_WARNING:
        return Check(
            "disk", "warning", free_text, remedy="free space, or lower limits.unsealed_bytes"
        )
    return Check("disk", "ok", free_text)


def format_of(directory: Path, version: int | None, newest: int) -> Check:
    """Check whether this version of Penstock reads the storage format of a data directory."""
    if version is None:
        remedy = f"see `penstock store verify {directory}`; restore registry/ from a backup"
        return Check("format", "failed", "the record of the format cannot be read", remedy=remedy)
    if version > newest:
        remedy = "use the newer version of Penstock that wrote it"
        return Check(
            "format", "failed", f"{version}; this version reads up to {newest}", remedy=remedy
        )
    if version < newest:
        remedy = "back it up first: once this version has started, older ones cannot read it"
        return Check(
            "format", "warning", f"{version}; this version converts it to {newest}", remedy=remedy
        )
    return Check("format", "ok", str(version))


def _lock(holder: str) -> Check:
    if holder:
        return Check("lock", "ok", f"in use by {holder}; a second realm would be refused")
    return Check("lock", "ok", "no realm has it open")


def ports(settings: Settings) -> Iterator[Check]:
    """Yield the checks whether the realm's ports are free or used by the realm itself."""
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
    """Check that a realm could listen at a port, or that a realm listens there already. ``answers``
    returns the description of that realm, or an empty text if another program uses the port."""
    if port == 0:
        return Check(name, "ok", "any free port")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        with socket.socket(family, kind) as probe:
            # Set the option that the realm sets, so that connections of an earlier process in
            # TIME_WAIT do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        description = answers()
        if description:
            return Check(name, "ok", f"{host}:{port}: {description}")
        remedy = f"stop the program that uses it, or use another: penstock serve {option} N"
        return Check(name, "failed", f"{host}:{port}: {error.strerror or error}", remedy=remedy)
    return Check(name, "ok", f"{host}:{port} is free")


def _realm(scheme: str, host: str, port: int) -> str:
    """Describe the realm that answers at a native port; empty if no realm answers."""
    from penstock.client.sync.sync import connect

    name = "localhost" if host in ("0.0.0.0", "::", "") else host
    try:
        with connect(f"{scheme}://{name}:{port}", reconnect_timeout=0) as opened:
            info = opened.info()
            return f"realm {info.name}, version {info.version}, answers"
    except CannotConnect:
        return ""
    except PenstockError as error:  # a refusal proves that a realm answers
        return f"a realm answers: {error}"


def _health(host: str, port: int, *, secure: bool) -> str:
    """Return the answer of a realm's HTTP port as text; empty if no realm answers."""
    from penstock_server.cli.checks import probing

    endpoint = probing.Endpoint(probing.reachable_host(host), port, secure)
    answer = probing.over_http(endpoint, "/health", ANSWER_S)
    return f"a realm answers: {answer.text}" if answer.is_good else ""


def file_limit(settings: Settings) -> Iterator[Check]:
    """Check whether the limit of open files allows the configured number of connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.listen.connections_max + OTHER_FILES
    if hard == resource.RLIM_INFINITY or hard >= needed:
        shown = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
        yield Check("open files", "ok", f"{shown}, and {needed:,} are needed")
        return
    remedy = f"raise it (LimitNOFILE={needed} in a unit), or lower listen.connections_max"
    yield Check(
        "open files", "warning", f"{hard:,} are allowed, {needed:,} are needed", remedy=remedy
    )


def clock(directory: Path | None) -> Iterator[Check]:
    """Check whether the clock is plausible; TTLs, schedules and ages depend on it."""
    from penstock_server.runtime.writer.clock import SystemClock

    now = moment_of(SystemClock().now_us())
    time_text = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    remedy = "set the clock and synchronise it (chrony, systemd-timesyncd)"
    if now < _BUILT:
        yield Check("clock", "failed", time_text, remedy=remedy)
        return
    newest = max(_journal_times(directory), default=now) if directory is not None else now
    # A minute of tolerance: the journal may be on a file server whose clock differs slightly.
    if newest > now + timedelta(minutes=1):
        conflict = f"{time_text}; the data directory was written at {newest:%Y-%m-%d %H:%M:%S}"
        yield Check("clock", "failed", conflict, remedy=remedy)
        return
    yield Check("clock", "ok", time_text)


def _journal_times(directory: Path) -> Iterable[datetime]:
    """Yield the modification times of the journal files."""
    for file in (directory / "journal").glob("*.log"):
        yield datetime.fromtimestamp(file.stat().st_mtime, UTC)


def eavesdroppers(settings: Settings) -> Iterator[Check]:
    """Check whether passwords and events travel over the network without encryption."""
    from penstock_core.wire.addresses import is_loopback

    listen, access = settings.listen, settings.access
    hosts = {listen.host, settings.http.host or listen.host}
    reachable = ", ".join(sorted(host for host in hosts if not is_loopback(host)))
    if not reachable or listen.tls_certificate or listen.tls_self_signed:
        return
    problem = f"{reachable} without TLS: events can be read on the network"
    remedy = "set listen.tls_certificate and listen.tls_key, or listen.tls_self_signed"
    if access.cleartext_passwords:
        yield Check(
            "network", "warning", f"{problem}, and so can passwords and tokens", remedy=remedy
        )
    else:
        yield Check(
            "network",
            "warning",
            f"{problem}; passwords and tokens are refused there",
            remedy=remedy,
        )


def certificates(settings: Settings) -> Iterator[Check]:
    """Yield the checks whether the TLS files are usable and when they expire."""
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
            "tls", "failed", str(error), remedy="correct the file or its path in the settings"
        )
        return
    yield _expiry("tls certificate", Path(listen.tls_certificate), first_only=True)
    if listen.tls_client_ca:
        yield _expiry("tls authorities", Path(listen.tls_client_ca), first_only=False)


def _expiry(name: str, file: Path, *, first_only: bool) -> Check:
    """Check that the certificates in a file are valid now and do not expire soon; only the first
    one if ``first_only``."""
    from cryptography import x509

    from penstock_server.runtime.writer.clock import SystemClock

    now = moment_of(SystemClock().now_us())
    certificates = x509.load_pem_x509_certificates(file.read_bytes())
    if first_only:
        # Certificates of authorities may follow that of the server.
        certificates = certificates[:1]
    ends = min(certificate.not_valid_after_utc for certificate in certificates)
    begins = max(certificate.not_valid_before_utc for certificate in certificates)
    remedy = "renew it; SIGHUP makes a running realm read it again"
    if ends <= now:
        return Check(name, "failed", f"{file} expired on {ends:%Y-%m-%d}", remedy=remedy)
    if begins > now:
        return Check(
            name, "failed", f"{file} is valid from {begins:%Y-%m-%d}", remedy="check the clock"
        )
    until = f"{file}, valid until {ends:%Y-%m-%d}"
    return Check(name, "warning" if ends < now + EXPIRES_SOON else "ok", until, remedy=remedy)
