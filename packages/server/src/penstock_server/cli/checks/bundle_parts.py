"""The parts of a support archive, limited to data that may be passed on.

Every part lists what it includes. A value is included because its type or its field is allowed,
never because its name does not look secret.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import re
import resource
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import AccessDenied, NameDoesNotExist
from penstock_server.cli.checks import bundle_texts, probing
from penstock_server.cli.checks.checks import ANSWER_S, Check
from penstock_server.cli.shared import choosing
from penstock_server.cli.shared.output import quietly

if TYPE_CHECKING:
    from penstock.client.connection.urls import RealmUrl
    from penstock.client.handles.channels import Channels
    from penstock.client.handles.queues import Queues
    from penstock_core.api.channels import ChannelInfo
    from penstock_core.api.realm import RatesNow
    from penstock_core.api.requests import Request

T = TypeVar("T")

LOG_BYTES_MAX: Final = 1 << 20
"""Bytes at the end of the log that are read."""
METRICS_BYTES_MAX: Final = 4 << 20
"""Bytes of metrics that are read."""
STORES_MAX: Final = 1_000
"""Maximum number of channels and queues whose counters are requested from a running realm; each
costs two or three requests. The counters of a stopped realm are not limited."""
DURABLES_MAX: Final = 2_000
"""Maximum number of durables with their counters."""
REALM_S: Final = 60.0
"""Seconds to wait for an answer of the realm."""
FOLDER_DEPTH_MAX: Final = 16
"""Levels of folders in a data directory whose files are counted."""

_FOLDERS: Final = frozenset(
    ("audit", "blocks", "journal", "pages", "quarantine", "registry", "segments", "snapshots",
     "tables", "tls")
)  # fmt: skip
"""Folders of a data directory whose names are shown; files in other folders count as ``other``."""
_SUFFIXES: Final = frozenset((".arrow", ".bodies", ".json", ".log", ".page", ".pem", ".snap"))
"""Suffixes of files that are shown; files with other suffixes count as one group."""
_SHOWN_FINDINGS: Final = frozenset(
    ("amqp", "clock", "disk", "event loop", "format", "lock", "open files", "packages", "penstock")
)
"""Checks whose texts have only versions, sizes, times and process numbers. Others may quote a
setting, a path or an answer, so only their status is included."""
_PATH: Final = re.compile(r" at /.*", re.DOTALL)
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Unobtainable(Exception):
    """A part could not be made. The text has no secrets."""


class Sources(Struct, frozen=True, kw_only=True):
    """The places that an archive is made from."""

    checks: Sequence[Check]
    data: Path | None = None
    settings: Path | None = None
    log: Path | None = None
    url: str | None = None


def encoded(value: Any) -> bytes:
    """Return ``value`` as an indented JSON document."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def findings(sources: Sources) -> bytes:
    """Return the results of the checks."""
    return encoded(
        [
            {
                "name": check.name,
                "status": check.status,
                "found": _PATH.sub("", check.found) if check.name in _SHOWN_FINDINGS else None,
            }
            for check in sources.checks
        ]
    )


# --- settings -----------------------------------------------------------------------------


def settings(sources: Sources) -> bytes:
    """Return every option with its origin. The values of numbers, truth values and choices are
    included. For a text, only the fact whether it is the default is included."""
    from penstock_server.settings.loading import settings_type

    types = dict(_types("", settings_type()))
    options = []
    for option in choosing.shown(sources.settings):
        is_default = option.value == option.default
        row = {"option": option.option, "from": option.origin, "is_default": is_default}
        if is_default or _is_public(types[option.option]):
            row["value"] = option.value
        options.append(row)
    return encoded(options)


def _types(prefix: str, section: type[Struct]) -> Iterator[tuple[str, msgspec.inspect.Type]]:
    """Yield the path and the type of every option of a section."""
    described: Any = msgspec.inspect.type_info(section)
    for field in described.fields:
        kind = _plain(field.type)
        if isinstance(kind, msgspec.inspect.StructType):
            yield from _types(f"{prefix}{field.name}.", kind.cls)
        else:
            yield f"{prefix}{field.name}", kind


def _plain(kind: Any) -> Any:
    """Return a type without its description."""
    return kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind


def _is_public(kind: Any) -> bool:
    """Whether the values of an option of this type may be passed on."""
    kind = _plain(kind)
    if isinstance(kind, msgspec.inspect.UnionType):
        return all(map(_is_public, kind.types))
    public = (
        msgspec.inspect.BoolType,
        msgspec.inspect.FloatType,
        msgspec.inspect.IntType,
        msgspec.inspect.LiteralType,
        msgspec.inspect.NoneType,
    )
    return isinstance(kind, public)


# --- machine ------------------------------------------------------------------------------


def machine(_: Sources) -> bytes:
    """Return the platform and its limits, without the names of the machine and the user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return encoded(
        {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "processors": os.cpu_count(),
            "usable_processors": len(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "open_files_soft": soft,
            "open_files_hard": hard,
        }
    )


def packages(_: Sources) -> bytes:
    """Return the versions of the packages of this project and of all that they require. Other
    installed packages are not included."""
    waiting = [
        name
        for distribution in importlib.metadata.distributions()
        if (name := distribution.name or "").startswith("penstock-")
    ]
    versions: dict[str, str] = {}
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions[distribution.name] = distribution.version
        is_own = distribution.name.startswith("penstock-")
        names = {
            match[0]
            for requirement in distribution.requires or ()
            # Extras of other projects are usually their own tools.
            if is_own or "extra ==" not in requirement
            if (match := _REQUIREMENT.match(requirement)) is not None
        } - seen
        seen |= names
        waiting += names
    return encoded(dict(sorted(versions.items())))


def files(sources: Sources) -> bytes:
    """Return the number and sizes of the files in the data directory by folder and suffix. Links
    are counted and not followed."""
    if sources.data is None:
        raise Unobtainable("needs --data")
    root = sources.data.expanduser().absolute()
    if not root.is_dir():
        raise Unobtainable("the data directory does not exist")
    counts: dict[tuple[str, str], list[int]] = {}
    omitted = {"links": 0, "unreadable_folders": 0, "folders_too_deep": 0}

    def unreadable(_: OSError) -> None:
        omitted["unreadable_folders"] += 1

    for path, folders, names, place in os.fwalk(root, onerror=unreadable):
        levels = Path(path).relative_to(root).parts
        if len(levels) >= FOLDER_DEPTH_MAX:
            omitted["folders_too_deep"] += len(folders)
            folders.clear()
        top = levels[0] if levels else ""
        for name in (*names, *folders):
            mode, size = _mode_and_size(name, place)
            omitted["links"] += stat.S_ISLNK(mode)
            if stat.S_ISREG(mode):
                suffix = Path(name).suffix
                key = (
                    top if top in _FOLDERS or not top else "other",
                    suffix if suffix in _SUFFIXES else "",
                )
                counts.setdefault(key, []).append(size)
    rows = [
        {
            "folder": folder,
            "suffix": suffix,
            "files": len(sizes),
            "bytes": sum(sizes),
            "largest_bytes": sorted(sizes, reverse=True)[:10],
        }
        for (folder, suffix), sizes in sorted(counts.items())
    ]
    return encoded({"files": rows, **omitted})


def _mode_and_size(name: str, place: int) -> tuple[int, int]:
    """Return the mode and size of a file; zeros if it is gone."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_mode, status.st_size


def log(sources: Sources) -> bytes:
    """Return the last lines of the log, reduced to numbers and known words."""
    if sources.log is None:
        raise Unobtainable("needs --log")
    # Opening a pipe would wait for its other end.
    number = os.open(sources.log.expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise Unobtainable("the log is not a regular file")
        begin = max(0, status.st_size - LOG_BYTES_MAX)
        file.seek(begin)
        text = file.read(LOG_BYTES_MAX).decode("utf-8", "replace")
    if begin:
        text = text.partition("\n")[2]  # the first line is not whole
    return b"".join(msgspec.json.encode(line) + b"\n" for line in bundle_texts.log_lines(text))


# --- the realm ----------------------------------------------------------------------------


def realm(sources: Sources) -> bytes:
    """Return the figures of the running realm."""
    from penstock_core.api.realm import ClusterInfo, DescribeCluster, DescribeRealm, RealmInfo

    info = msgspec.to_builtins(_ask(sources, DescribeRealm(), RealmInfo))
    cluster = _ask(sources, DescribeCluster(), ClusterInfo)
    figures = {name: value for name, value in info.items() if isinstance(value, int | float)}
    nodes = [{"state": node.state, "version": node.version} for node in cluster.nodes]
    return encoded({**figures, "version": info["version"], "nodes": nodes, "epoch": cluster.epoch})


def statistics(sources: Sources) -> bytes:
    """Return the counters of channels, queues and durables: those of the data directory if no realm
    has it open, else those of the running realm."""
    from penstock_server.bootstrap import inspect_directory

    if sources.data is not None and sources.data.expanduser().is_dir():
        directory = sources.data.expanduser().absolute()
        content = inspect_directory(directory)
        if content.is_realm and not content.holder:
            from penstock_server.bootstrap import stopped

            with quietly():
                return stored_counters(asyncio.run(stopped.read_counters(directory)))
    return encoded(asyncio.run(_live_counters(_url(sources))))


def stored_counters(rates: RatesNow) -> bytes:
    """Return the counters of a stopped realm as JSON."""
    document = msgspec.to_builtins(rates)
    for channel, counted in zip(document["channels"], rates.channels, strict=True):
        channel["counters"] = msgspec.structs.asdict(counted.counters)
    left_out = max(0, len(rates.durables) - DURABLES_MAX)
    durables = _numbered(document["durables"][:DURABLES_MAX])
    return encoded({**document, "durables": durables, "durables_left_out": left_out})


def _numbered(durables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counters of durables with numbers instead of names, which may have the names of
    clients. The numbers begin with 1 for each channel, in the order of the names."""
    numbers: dict[str, int] = {}
    rows = []
    for durable in sorted(durables, key=lambda durable: (durable["channel"], durable["name"])):
        channel = durable["channel"]
        numbers[channel] = numbers.get(channel, 0) + 1
        figures = {name: value for name, value in durable.items() if isinstance(value, int)}
        rows.append({"channel": channel, "durable": numbers[channel], **figures})
    return rows


async def _live_counters(url: RealmUrl) -> dict[str, Any]:
    """Return the counters of a running realm, without channels and queues that the user may not
    read or that were deleted in the meantime."""
    from penstock.client.handles.channels import Channel
    from penstock.client.handles.session import open_session

    channels: list[dict[str, Any]] = []
    durables: list[dict[str, Any]] = []
    async with asyncio.timeout(REALM_S), await open_session(url, reconnect_timeout=0) as session:
        stores: list[tuple[Channels | Queues, str]] = [
            *((session.channels, name) for name in await session.channels.list()),
            *((session.queues, name) for name in await session.queues.list()),
        ]
        for kind, name in stores[:STORES_MAX]:
            with suppress(AccessDenied, NameDoesNotExist):
                store = await kind.get(name)
                channels.append(_figures(await store.info()))
                if isinstance(store, Channel) and len(durables) < DURABLES_MAX:
                    durables += map(msgspec.to_builtins, await store.durables.list())
    return {
        "channels": channels,
        "durables": _numbered(durables[:DURABLES_MAX]),
        "left_out": len(stores) - len(channels),
        "durables_left_out": max(0, len(durables) - DURABLES_MAX),
    }


def _figures(info: ChannelInfo) -> dict[str, Any]:
    """Return the counters of a channel or queue."""
    figures = {name: value for name, value in msgspec.structs.asdict(info).items()
               if isinstance(value, int)}  # fmt: skip
    counters = msgspec.structs.asdict(info.counters)
    kind = info.definition.kind
    return {"name": info.name, "kind": kind, **figures, "counters": counters}


def metrics(sources: Sources) -> bytes:
    """Return the metrics of the running realm, without those of durables, connections and nodes."""
    from penstock_server.settings import HTTP_PORT

    chosen = choosing.chosen(sources.settings)
    if not chosen.http.enabled:
        raise Unobtainable("the realm serves no HTTP")
    listen = chosen.listen
    port = HTTP_PORT if chosen.http.port is None else chosen.http.port
    if not port:
        raise Unobtainable("needs http.port, because the realm chose a free port")
    endpoint = probing.Endpoint(
        probing.reachable_host(chosen.http.host or listen.host),
        port,
        bool(listen.tls_certificate or listen.tls_self_signed),
    )
    status, content = probing.page(endpoint, "/metrics", ANSWER_S, size_max=METRICS_BYTES_MAX)
    if status != 200:
        raise Unobtainable(f"the realm answered with status {status}")
    lines = bundle_texts.metrics(content.decode("utf-8", "replace"))
    return "".join(f"{line}\n" for line in lines).encode()


def _ask(sources: Sources, request: Request[Any], answer: type[T]) -> T:
    """Return the answer of the running realm. Raises ``CannotConnect``, and the realm's error if it
    refuses the request."""
    from penstock.client.handles.session import open_session

    url = _url(sources)

    async def ask() -> T:
        async with asyncio.timeout(REALM_S):
            async with await open_session(url, reconnect_timeout=0) as session:
                return await session.connection.ask(request, answer)

    return asyncio.run(ask())


def _url(sources: Sources) -> RealmUrl:
    """Return the given URL, or that of the realm with these settings on this machine."""
    from penstock.client.connection.urls import parse_url

    if sources.url:
        return parse_url(sources.url)
    listen = choosing.chosen(sources.settings).listen
    if not listen.port:
        raise Unobtainable("needs --url, because listen.port is 0")
    scheme = "penstocks" if listen.tls_certificate or listen.tls_self_signed else "penstock"
    host = "localhost" if listen.host in ("0.0.0.0", "::", "") else listen.host
    return parse_url(f"{scheme}://{host}:{listen.port}")
