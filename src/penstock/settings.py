"""Every option of the server: its default, its bounds, its sentence.

Read at start, handed to ``bootstrap``, and not passed further: below it, code takes values.
Order: default, settings file (TOML), environment (``PENSTOCK_LISTEN_PORT``), command line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from penstock.core.errors import InvalidArgument
from penstock.core.lockout import LockoutRules


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ListenSettings(Section, frozen=True, kw_only=True):
    host: Annotated[
        str,
        Meta(description="Address to listen on. Without authentication: a loopback address."),
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port; 0 takes any free one.")] = 9_000
    amqp_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of AMQP 1.0, for JMS and other clients; its own is 5672, 0 takes any "
            "free one. Not given: no AMQP. Needs the extra `amqp`."
        ),
    ] = None
    connections_max: Annotated[int, Meta(ge=1, description="Most connections at once.")] = 10_000
    idle_timeout_s: Annotated[
        float, Meta(gt=0, description="A connection silent this long is taken for dead.")
    ] = 45.0
    hello_timeout_s: Annotated[
        float, Meta(gt=0, description="A connection has to say who it is within this time.")
    ] = 10.0
    tls_certificate: Annotated[
        str,
        Meta(description="PEM file of the realm's certificate, with its chain; empty: no TLS."),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key.")] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="PEM file of the authorities whose client certificates are believed; the "
            "certificate's common name is the user (SEM A5)."
        ),
    ] = ""
    tls_client_required: Annotated[
        bool, Meta(description="Refuse connections without a client certificate.")
    ] = False


class AccessSettings(Section, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["off", "optional", "mandatory"],
        Meta(
            description="Authentication: off (loopback only, everyone may do everything), optional "
            "(who does not sign in is anonymous), mandatory (SEM A4)."
        ),
    ] = "off"
    password_rounds: Annotated[
        int,
        Meta(
            ge=4_096,
            le=5_000_000,
            description="Rounds of PBKDF2 for new passwords; more make guessing and signing in "
            "slower.",
        ),
    ] = 200_000
    failure_delay_s: Annotated[
        float, Meta(ge=0, description="How long a failed sign-in waits for its answer.")
    ] = 1.0
    lockout_failures: Annotated[
        int,
        Meta(
            ge=0,
            description="So many wrong passwords of one user, or from one host, within "
            "`lockout_window_s` lock it; 0: nothing is ever locked.",
        ),
    ] = 10
    lockout_window_s: Annotated[
        float, Meta(gt=0, description="How long a wrong password counts.")
    ] = 600.0
    lockout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long the first lock lasts; each that follows lasts twice as long.",
        ),
    ] = 30.0
    lockout_max_s: Annotated[float, Meta(gt=0, description="No lock lasts longer.")] = 900.0
    token_keys: Annotated[
        str,
        Meta(
            description="JSON Web Key Set for bearer tokens: a file, or an https URL such as an "
            "OpenID provider's `jwks_uri`; empty: no tokens."
        ),
    ] = ""
    token_issuer: Annotated[str, Meta(description="Who has to have issued a token.")] = ""
    token_audience: Annotated[str, Meta(description="Whom a token has to be made for.")] = ""
    token_user_claim: Annotated[str, Meta(description="The claim that names the user.")] = "sub"
    token_groups_claim: Annotated[
        str, Meta(description="The claim that names groups; dots lead into objects.")
    ] = "groups"
    login_idle_s: Annotated[
        float, Meta(gt=0, description="A console session unused this long ends.")
    ] = 3_600.0
    login_total_s: Annotated[
        float, Meta(gt=0, description="A console session ends after this time in any case.")
    ] = 43_200.0

    @property
    def lockout(self) -> LockoutRules:
        """When wrong passwords lock, and for how long."""
        return LockoutRules(
            failures=self.lockout_failures,
            window_s=self.lockout_window_s,
            lock_s=self.lockout_s,
            lock_s_max=self.lockout_max_s,
        )


class HttpSettings(Section, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        Meta(
            description="Serve HTTP: the administration API, metrics and the console. A realm "
            "embedded in a program never does by itself."
        ),
    ] = True
    host: Annotated[
        str, Meta(description="Address of HTTP; empty: the one of the native protocol.")
    ] = ""
    port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Its port; 0 takes any free one. Not given: 9080, and no HTTP where "
            "another process has that."
        ),
    ] = None
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Most HTTP connections at once. Beyond them the one goes that has let the "
            "realm wait longest for a request; while all are being answered, a few more may look "
            "at /health, /ready and /metrics.",
        ),
    ] = 256
    connections_per_address_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Most HTTP connections of one address, or of one /64 of IPv6. All users "
            "behind a proxy have its address.",
        ),
    ] = 128
    hosts: Annotated[
        str,
        Meta(
            description="Names by which browsers reach the realm, with ',' between them. Under "
            "other names nobody comes in without a user: a page of another site may have led "
            "there by its DNS. Addresses and localhost are known, and any name over TLS."
        ),
    ] = ""
    viewers_max: Annotated[int, Meta(ge=0, description="Most live views at once.")] = 100
    body_bytes: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Largest body of a request, in bytes.")
    ] = 32 << 20
    head_timeout_s: Annotated[
        float,
        Meta(gt=0, description="A connection has to make a request within this time, or is over."),
    ] = 20.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="The body of a request has to come within this time.")
    ] = 60.0
    send_timeout_s: Annotated[
        float, Meta(gt=0, description="A peer that takes nothing for so long is dropped.")
    ] = 30.0
    channels_named_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Channels and queues, and as many durables and connections, that have "
            "metrics of their own.",
        ),
    ] = 1_000
    pipelines: Annotated[
        str,
        Meta(
            description="Folders of pipelines' checkpoints, with ':' between them, whose progress "
            "is shown."
        ),
    ] = ""


class LimitSettings(Section, frozen=True, kw_only=True):
    max_event_bytes: Annotated[
        int, Meta(ge=1_024, le=60 << 20, description="Largest event, in bytes (SEM E7).")
    ] = 20 << 20
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes for events that live in memory only: reliable and simple channels, "
            "events of mixed ones that are not persistent (SEM C6).",
        ),
    ] = 1 << 30
    off_heap_bytes: Annotated[
        int, Meta(ge=0, description="Bytes for events of off-heap channels (SEM C6).")
    ] = 1 << 30
    paged_bytes: Annotated[
        int, Meta(ge=0, description="Bytes for events of paged channels, on disk (SEM C6).")
    ] = 4 << 30
    stage_bytes: Annotated[
        int, Meta(ge=0, description="Bytes of staged batches: uncommitted Spark micro-batches.")
    ] = 2 << 30
    event_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long an event without a TTL waits on a JMS channel for a subscriber "
            "that has lost its connection (SEM J5).",
        ),
    ] = 60.0
    unsealed_bytes: Annotated[
        int,
        Meta(ge=1 << 20, description="Bytes not in segment files above which publishers wait."),
    ] = 512 << 20
    channels_max: Annotated[
        int, Meta(ge=0, description="Most channels and queues together; 0: no limit.")
    ] = 0
    connections_per_user_max: Annotated[
        int, Meta(ge=0, description="Most connections of one user at once; 0: no limit.")
    ] = 0
    in_flight_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of publishes of one connection not answered yet; 0: no limit of "
            "its own.",
        ),
    ] = 0
    requests_per_s_max: Annotated[
        int, Meta(ge=0, description="Requests a second on one connection; 0: no limit.")
    ] = 0


class StorageSettings(Section, frozen=True, kw_only=True):
    segment_bytes: Annotated[
        int, Meta(ge=4_096, description="A segment file is closed above this many bytes.")
    ] = 64 << 20
    journal_bytes: Annotated[
        int, Meta(ge=1 << 20, description="A snapshot is taken when the journal is this large.")
    ] = 256 << 20
    seal_interval_ms: Annotated[
        int, Meta(ge=1, description="How often to look for events to move into segment files.")
    ] = 250
    sweep_interval_ms: Annotated[
        int, Meta(ge=1, description="How often to look for expired events (SEM T1).")
    ] = 1_000


class LogSettings(Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least important line.")
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="JSON lines, readable text, or text only on a terminal."),
    ] = "auto"


class Settings(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="What this realm calls itself.")] = "penstock"
    listen: ListenSettings = ListenSettings()
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()


def load(
    document: str = "",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from TOML text, then environment variables, then ``{"listen.port": 9001}``.

    Raises ``InvalidArgument`` naming the path of an unknown key or a bad value.
    """
    try:
        tree: dict[str, Any] = tomllib.loads(document)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"the settings are no TOML: {error}") from error
    for path, text in _from_environment(environment or {}):
        _put(tree, path, text)
    for path, value in (overrides or {}).items():
        if value is not None:
            _put(tree, path, value)
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"settings: {error}") from error


def in_effect(
    document: str, environment: Mapping[str, str]
) -> list[tuple[str, Any, Literal["default", "file", "environment"]]]:
    """Path, value and origin of every option, as a server would take them.

    Raises ``InvalidArgument`` as :func:`load` does.
    """
    settings = load(document, environment)
    written = tomllib.loads(document)
    found: list[tuple[str, Any, Literal["default", "file", "environment"]]] = []
    for path, *_ in described():
        value: Any = settings
        tree: Any = written
        for part in path.split("."):
            value = getattr(value, part)
            tree = tree.get(part) if isinstance(tree, dict) else None
        if variable_of(path) in environment:
            found.append((path, value, "environment"))
        else:
            found.append((path, value, "default" if tree is None else "file"))
    return found


def variable_of(path: str) -> str:
    """The environment variable of an option: ``PENSTOCK_LISTEN_PORT`` for ``listen.port``."""
    return f"PENSTOCK_{path.upper().replace('.', '_')}"


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    known = {variable_of(path): path for path, *_ in described()}
    return [(path, environment[name]) for name, path in known.items() if name in environment]


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise InvalidArgument(f"settings: {section} is {tree!r}; it has to be a table")
    tree[key] = value


@cache
def described() -> Sequence[tuple[str, Any, str]]:
    """Path, default and sentence of every option, for the reference page."""
    return tuple(_described(Settings, ""))


def _described(section: type[Struct], prefix: str) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    for field in msgspec.inspect.type_info(section).fields:  # type: ignore[attr-defined]  # a StructType
        path = f"{prefix}{field.name}"
        default = getattr(section(), field.name)
        if isinstance(default, Struct):
            found += _described(type(default), f"{path}.")
        else:
            extra = getattr(field.type, "extra_json_schema", None) or {}
            found.append((path, default, extra.get("description", "")))
    return found
