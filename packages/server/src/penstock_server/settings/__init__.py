"""Every option of the server: its default, its bounds, its sentence.

The values are handed to ``bootstrap``, and not passed further: below it, code takes values. Where
they come from is in :mod:`penstock_server.settings.loading`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from penstock_core.access.lockout import LockoutRules
from penstock_core.vocabulary.uris import shown

HTTP_PORT: Final = 9_080
"""Where HTTP is served when nobody says where."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    def __repr__(self) -> str:
        """All values, with URLs as they may be shown: a password or key in one is hidden."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        each = ", ".join(f"{name}={without_secret(value)!r}" for name, value in values)
        return f"{type(self).__name__}({each})"


def without_secret(value: Any) -> Any:
    """A value as it may be shown: a URL may have a password, or a key behind its question mark."""
    if not isinstance(value, str) or "://" not in value:
        return value
    return f"{shown(value)}?***" if "?" in value else shown(value)


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
    mqtt_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of MQTT 3.1.1 and 5; its own is 1883, or 8883 with TLS, 0 takes any "
            "free one. Not given: no MQTT."
        ),
    ] = None
    mqtt_channel: Annotated[
        str,
        Meta(description="Channel of everything that is published over MQTT; made if missing."),
    ] = "mqtt"
    connections_max: Annotated[int, Meta(ge=1, description="Most connections at once.")] = 10_000
    idle_timeout_s: Annotated[
        float, Meta(gt=0, description="A connection that is silent for this long is closed.")
    ] = 45.0
    hello_timeout_s: Annotated[
        float, Meta(gt=0, description="Time in which a client has to identify itself.")
    ] = 10.0
    linger_us: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Microseconds for which the server, before it sleeps, looks for the next "
            "event of clients that wait for each answer. 0, or with one processor: none.",
        ),
    ] = 500
    tls_certificate: Annotated[
        str,
        Meta(description="PEM file of the realm's certificate, with its chain; empty: no TLS."),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key.")] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="PEM file of the authorities whose client certificates are accepted; the "
            "certificate's common name is the user."
        ),
    ] = ""
    tls_client_required: Annotated[
        bool, Meta(description="Refuse connections without a client certificate.")
    ] = False
    tls_client_revoked: Annotated[
        str,
        Meta(
            description="PEM file of the revocation lists of those authorities, one of each; "
            "clients with a revoked certificate are refused, and their sessions end."
        ),
    ] = ""
    tls_self_signed: Annotated[
        str,
        Meta(
            description="Names and addresses, with commas between them, of a certificate that the "
            "realm creates if `tls_certificate` is empty; it is kept in `tls/` of the data "
            "directory, so that clients can be told to trust it. Empty: none is created."
        ),
    ] = ""


class AccessSettings(Section, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["off", "optional", "mandatory"],
        Meta(
            description="Authentication: off (loopback only, everyone may do everything), optional "
            "(clients that do not sign in are anonymous), mandatory."
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
    ] = 600_000
    password_length_min: Annotated[
        int, Meta(ge=1, le=128, description="Fewest characters of a new password.")
    ] = 8
    cleartext_passwords: Annotated[
        bool,
        Meta(
            description="Accept passwords and tokens over the network without TLS, where others "
            "can read them. Native clients never send passwords, so they need no such permission."
        ),
    ] = False
    audit_files: Annotated[
        int,
        Meta(
            ge=0,
            description="Older files of each audit log to keep, of 16 MiB each; the oldest is "
            "deleted. 0: all are kept.",
        ),
    ] = 20
    failure_delay_s: Annotated[
        float, Meta(ge=0, description="Delay before a failed sign-in is answered.")
    ] = 1.0
    lockout_failures: Annotated[
        int,
        Meta(
            ge=0,
            description="Wrong passwords of one user within `lockout_window_s` after which it is "
            "locked; ten times as many from one host lock the host; 0: never.",
        ),
    ] = 10
    lockout_window_s: Annotated[
        float, Meta(gt=0, description="How long a wrong password counts.")
    ] = 600.0
    lockout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long the first lock lasts; each following lock lasts twice as long.",
        ),
    ] = 30.0
    lockout_max_s: Annotated[float, Meta(gt=0, description="Longest duration of a lock.")] = 900.0
    token_keys: Annotated[
        str,
        Meta(
            description="JSON Web Key Set for bearer tokens: a file, or an https URL such as an "
            "OpenID provider's `jwks_uri`; empty: no tokens."
        ),
    ] = ""
    token_issuer: Annotated[str, Meta(description="Required issuer of a token.")] = ""
    token_audience: Annotated[str, Meta(description="Required audience of a token.")] = ""
    token_user_claim: Annotated[str, Meta(description="The claim that names the user.")] = "sub"
    token_users: Annotated[
        Literal["apart", "same"],
        Meta(
            description="The user that a token identifies: apart is token:NAME, distinct from the "
            "user NAME who has a password here; same is that user (only if the issuer controls "
            "both kinds of names)."
        ),
    ] = "apart"
    certificate_users: Annotated[
        Literal["apart", "same"],
        Meta(
            description="The user that a client certificate identifies: apart is certificate:NAME; "
            "same is the user NAME who has a password here."
        ),
    ] = "apart"
    token_groups_claim: Annotated[
        str, Meta(description="The claim that names groups; dots separate nested fields.")
    ] = "groups"
    login_idle_s: Annotated[
        float, Meta(gt=0, description="A console session that is unused for this long ends.")
    ] = 3_600.0
    login_total_s: Annotated[
        float, Meta(gt=0, description="A console session ends after this time in any case.")
    ] = 43_200.0
    logins_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Most console sessions of one user; another one ends the session that was "
            "unused for longest.",
        ),
    ] = 100

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
            "embedded in a program does not do so by itself."
        ),
    ] = True
    host: Annotated[
        str, Meta(description="Address of HTTP; empty: that of the native protocol.")
    ] = ""
    port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of HTTP; 0 takes any free one. Not given: 9080, and no HTTP if "
            "another process uses that port."
        ),
    ] = None
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Most HTTP connections at once. Beyond that, the connection that has been "
            "idle for longest is closed; while all are being answered, a few more may read "
            "/health, /ready and /metrics.",
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
            "other names every request needs a user, because a page of another site may have "
            "led there by its DNS. Addresses, localhost and any name over TLS are accepted."
        ),
    ] = ""
    viewers_max: Annotated[int, Meta(ge=0, description="Most live views at once.")] = 100
    viewers_per_user_max: Annotated[
        int, Meta(ge=0, description="Most live views of one user at once.")
    ] = 25
    leases_max: Annotated[
        int, Meta(ge=0, description="Most fetched batches that are not settled, of all clients.")
    ] = 1_000
    leases_per_user_max: Annotated[
        int, Meta(ge=0, description="Most fetched batches of one user that are not settled.")
    ] = 100
    leased_events_max: Annotated[
        int, Meta(ge=0, description="Most fetched events that are not settled, of all clients.")
    ] = 1_000_000
    leased_events_per_user_max: Annotated[
        int, Meta(ge=0, description="Most fetched events of one user that are not settled.")
    ] = 100_000
    requests_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Most requests of one user that are being answered at once, including live "
            "views, downloads and other long requests.",
        ),
    ] = 128
    body_bytes: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Largest body of a request, in bytes.")
    ] = 32 << 20
    head_timeout_s: Annotated[
        float,
        Meta(gt=0, description="A connection has to send a request's head within this time."),
    ] = 20.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="The body of a request has to arrive within this time.")
    ] = 60.0
    send_timeout_s: Annotated[
        float,
        Meta(
            gt=0, description="A client that reads nothing of its answer for this long is dropped."
        ),
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
            description="Folders of pipelines' checkpoints whose progress is shown, with ':' "
            "between them."
        ),
    ] = ""


class LimitSettings(Section, frozen=True, kw_only=True):
    max_event_bytes: Annotated[
        int, Meta(ge=1_024, le=60 << 20, description="Largest event, in bytes.")
    ] = 20 << 20
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes for events that are kept in memory only: those of reliable and "
            "simple channels, and those of mixed channels that are not persistent.",
        ),
    ] = 1 << 30
    off_heap_bytes: Annotated[
        int, Meta(ge=0, description="Bytes for events of off-heap channels.")
    ] = 1 << 30
    paged_bytes: Annotated[
        int, Meta(ge=0, description="Bytes for events of paged channels, on disk.")
    ] = 4 << 30
    index_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of memory for the values of publish keys, and for the states of "
            "merge channels whose events are on disk; one channel has half of what the others "
            "leave; 0: no limit.",
        ),
    ] = 4 << 30
    property_names_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Most property names of a channel, including those inside dictionaries; "
            "0: no limit.",
        ),
    ] = 1_000
    stage_bytes: Annotated[
        int, Meta(ge=0, description="Bytes of staged batches: uncommitted Spark micro-batches.")
    ] = 2 << 30
    event_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="How long an event without a TTL waits on a JMS channel for a subscriber "
            "that has lost its connection, and a reply queue for its session.",
        ),
    ] = 60.0
    unsealed_bytes: Annotated[
        int,
        Meta(ge=1 << 20, description="Bytes not yet in segment files above which publishers wait."),
    ] = 512 << 20
    channels_max: Annotated[
        int, Meta(ge=0, description="Most channels and queues together; 0: no limit.")
    ] = 0
    connections_per_user_max: Annotated[
        int, Meta(ge=0, description="Most connections of one user at once; 0: no limit.")
    ] = 0
    subscriptions_per_connection_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Subscriptions of a connection, or live views of a user; 0: no limit.",
        ),
    ] = 1_000
    mqtt_sessions_per_user_max: Annotated[
        int, Meta(ge=0, description="Most stored sessions of MQTT of one user; 0: no limit.")
    ] = 100_000
    mqtt_session_bytes_per_user_max: Annotated[
        int, Meta(ge=0, description="Most bytes of these, with filters and wills; 0: no limit.")
    ] = 64 << 20
    mqtt_retained_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Most topics with a retained message of MQTT; where users sign in, each "
            "user has half of what the others leave; 0: no limit.",
        ),
    ] = 1_000_000
    mqtt_retained_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Most bytes of memory of these topics, with some 300 for each level; "
            "shares as above; 0: no limit.",
        ),
    ] = 2 << 30
    durables_per_channel_max: Annotated[
        int, Meta(ge=0, description="Most durables of one channel; 0: no limit.")
    ] = 10_000
    in_flight_bytes_max: Annotated[
        int, Meta(ge=0, description="Bytes of a connection's unanswered publishes; 0: no limit.")
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
    snapshot_blocks: Annotated[
        int,
        Meta(
            ge=1,
            description="In a cluster: a snapshot is taken after this many blocks of the journal, "
            "too. A node that takes over asks the engine for each block behind the newest one.",
        ),
    ] = 10_000
    snapshot_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            description="In a cluster: a snapshot is taken after this time, too, if anything has "
            "been stored since the one before.",
        ),
    ] = 60.0
    seal_interval_ms: Annotated[
        int, Meta(ge=1, description="How often to look for events to move into segment files.")
    ] = 250
    sweep_interval_ms: Annotated[
        int, Meta(ge=1, description="How often to look for expired events.")
    ] = 1_000


class ClusterSettings(Section, frozen=True, kw_only=True):
    engine: Annotated[
        str,
        Meta(
            description="URL of the storage engine that the nodes of a cluster share, with all its "
            "servers: `nats://HOST:PORT,HOST:PORT,HOST:PORT` or "
            "`postgresql://USER@HOST:PORT,HOST:PORT/NAME`. Empty: the realm is in no cluster, and "
            "keeps its data in its data directory. Needs the extra `cluster`."
        ),
    ] = ""
    name: Annotated[
        str,
        Meta(
            description="Name of the cluster, with which all names on the engine begin: clusters "
            "with different names can share one engine. Lower-case letters, digits and '-'.",
        ),
    ] = "penstock"
    node: Annotated[
        str,
        Meta(
            description="Name of this node, which no other node of the cluster has. Empty: one is "
            "made at the first start and kept in the data directory.",
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="Name or address under which clients and the other nodes reach this node. "
            "Empty: `listen.host`."
        ),
    ] = ""
    lease_s: Annotated[
        float,
        Meta(
            ge=2,
            le=60,
            description="A node that has shown no sign of life for this long is replaced by "
            "another.",
        ),
    ] = 6.0
    reattach_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="How long a seat at an exclusive, priority or serial durable waits for its "
            "session when another node has taken over, before anybody else is served.",
        ),
    ] = 10.0
    outbox_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Bytes of events that a join from a local channel of this node to a "
            "cluster-wide store may have copied and not delivered; above it what would be copied "
            "is refused, until the cluster has taken some.",
        ),
    ] = 1 << 30
    blobs: Annotated[
        str,
        Meta(
            description="Where the cluster keeps segments and snapshots: `engine`, or the URI of "
            "an object store or a folder that all nodes share, such as `s3://bucket/prefix`."
        ),
    ] = "engine"
    cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of segments that a node keeps in its data directory, those that "
            "were read last; others are read from `blobs`. 0: none.",
        ),
    ] = 4 << 30
    secret_file: Annotated[
        str,
        Meta(
            description="File with the secret of the cluster, the same on every node and at least "
            "32 characters long: with it nodes sign who a client is whose connection they relay. "
            "Empty: the first node makes one and keeps it on the engine."
        ),
    ] = ""
    tls_authority: Annotated[
        str,
        Meta(
            description="Certificates of the authorities that the servers of the engine are "
            "checked with (PEM), where `engine` is `tls://`. Empty: those of the system."
        ),
    ] = ""
    tls_certificate: Annotated[
        str,
        Meta(
            description="Certificate by which the servers of the engine know this node (PEM), for "
            "those that ask for one. Needs `tls_key`."
        ),
    ] = ""
    tls_key: Annotated[str, Meta(description="Private key of `tls_certificate` (PEM).")] = ""
    relays_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Most connections that a node which stands by relays to the owner; others "
            "are told where the owner is.",
        ),
    ] = 1_000
    history_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port at which the node shows sealed history, to be read only, while the "
            "cluster has no quorum; it listens there only then, and 0 takes any free one. Not "
            "given: the node shows none.",
        ),
    ] = None
    history_http_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of HTTP for sealed history: console and API. Needs `history_port`. "
            "Not given: no HTTP there.",
        ),
    ] = None
    local_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of the node's local channels, which are kept in its own data "
            "directory and reached through it alone; 0 takes any free one. Not given: the node "
            "has none, and only cluster-wide channels.",
        ),
    ] = None
    local_http_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of HTTP for the node's local channels: console, API and metrics. "
            "Needs `local_port`. Not given: no HTTP there.",
        ),
    ] = None
    local_amqp_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of AMQP 1.0 for the node's local channels. Needs `local_port`. Not "
            "given: no AMQP there.",
        ),
    ] = None
    local_mqtt_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of MQTT for the node's local channels; what is published there is in "
            "the local channel `<listen.mqtt_channel>-<node>`. Needs `local_port`. Not given: no "
            "MQTT there.",
        ),
    ] = None
    monitors: Annotated[
        str,
        Meta(
            description="Where each NATS server serves its monitoring, with commas between them. "
            "Empty: at port 8222 of each host of `engine`."
        ),
    ] = ""


class LogSettings(Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Lowest level that is logged."),
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="JSON lines, readable text, or text only on a terminal."),
    ] = "auto"


class Settings(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of this realm.")] = "penstock"
    listen: ListenSettings = ListenSettings()
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    cluster: ClusterSettings = ClusterSettings()
    log: LogSettings = LogSettings()
