"""Every option of the server, with its default, its bounds and its description.

Only ``bootstrap`` reads the settings; the code below it receives single values.
:mod:`penstock_server.settings.loading` loads them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from penstock_core.access.lockout import LockoutRules
from penstock_core.vocabulary.uris import shown

HTTP_PORT: Final = 9_080
"""Default port of HTTP."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of the settings."""

    def __repr__(self) -> str:
        """Return all values, without passwords and keys in URLs."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        fields = ", ".join(f"{name}={without_secret(value)!r}" for name, value in values)
        return f"{type(self).__name__}({fields})"


def without_secret(value: Any) -> Any:
    """Return a value that may be shown: without the password of a URL, and without the query, which
    may have a key."""
    if not isinstance(value, str) or "://" not in value:
        return value
    return f"{shown(value)}?***" if "?" in value else shown(value)


class ListenSettings(Section, frozen=True, kw_only=True):
    host: Annotated[
        str,
        Meta(
            description="Address to listen on. Without authentication it must be a loopback "
            "address."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(ge=0, le=65_535, description="Port of the native protocol; 0 takes any free port."),
    ] = 9_000
    amqp_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of AMQP 1.0, for JMS and other clients; the standard port is 5672, 0 "
            "takes any free port. Without a port, AMQP is off. Requires the extra `amqp`."
        ),
    ] = None
    mqtt_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of MQTT 3.1.1 and 5; the standard port is 1883, or 8883 with TLS, 0 "
            "takes any free port. Without a port, MQTT is off."
        ),
    ] = None
    mqtt_channel: Annotated[
        str,
        Meta(
            description="Channel for MQTT messages whose topic belongs to no other channel; "
            "created if missing."
        ),
    ] = "mqtt"
    connections_max: Annotated[
        int, Meta(ge=1, description="Maximum number of simultaneous connections.")
    ] = 10_000
    idle_timeout_s: Annotated[
        float, Meta(gt=0, description="Time after which a silent connection is closed.")
    ] = 45.0
    hello_timeout_s: Annotated[
        float, Meta(gt=0, description="Time within which a client must identify itself.")
    ] = 10.0
    linger_us: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Microseconds for which the server polls for the next event before it "
            "sleeps, for clients that wait for each answer. 0 turns polling off; with a single "
            "processor it is always off.",
        ),
    ] = 500
    tls_certificate: Annotated[
        str,
        Meta(description="PEM file of the realm's certificate with its chain; empty for no TLS."),
    ] = ""
    tls_key: Annotated[str, Meta(description="PEM file of the certificate's key.")] = ""
    tls_client_ca: Annotated[
        str,
        Meta(
            description="PEM file of the certificate authorities for client certificates; the "
            "common name of a client certificate is the user."
        ),
    ] = ""
    tls_client_required: Annotated[
        bool, Meta(description="Refuse connections without a client certificate.")
    ] = False
    tls_client_revoked: Annotated[
        str,
        Meta(
            description="PEM file with one revocation list of each of these authorities; clients "
            "with a revoked certificate are refused, and their sessions end."
        ),
    ] = ""
    tls_self_signed: Annotated[
        str,
        Meta(
            description="Comma-separated names and addresses for a self-signed certificate, which "
            "the realm creates if `tls_certificate` is empty. It is stored in `tls/` of the data "
            "directory, so that clients can be configured to trust it. Empty for no certificate."
        ),
    ] = ""


class LdapSettings(Section, frozen=True, kw_only=True):
    url: Annotated[
        str,
        Meta(
            description="LDAP directory whose users may sign in with their password, such as "
            "`ldaps://directory.example`; empty for none. Requires the extra `ldap`."
        ),
    ] = ""
    start_tls: Annotated[
        bool, Meta(description="Begin TLS on a connection of `ldap://`, before any password.")
    ] = False
    ca: Annotated[
        str,
        Meta(
            description="PEM file of the certificate authorities of the directory; empty for those "
            "of the system."
        ),
    ] = ""
    user_dn: Annotated[
        str,
        Meta(
            description="Name of a user's entry, with `{user}` for the user, such as "
            "`uid={user},ou=people,dc=example,dc=com`; empty to search the entry."
        ),
    ] = ""
    base: Annotated[
        str, Meta(description="Entry below which users are searched; empty with `user_dn`.")
    ] = ""
    filter: Annotated[
        str, Meta(description="Filter that finds the entry of `{user}` below `base`.")
    ] = "(uid={user})"
    bind_dn: Annotated[
        str, Meta(description="Service account that searches; empty to search without an account.")
    ] = ""
    bind_password_file: Annotated[
        str,
        Meta(
            description="File with the password of the service account, which is read at each "
            "sign-in."
        ),
    ] = ""
    group_attribute: Annotated[
        str,
        Meta(
            description="Attribute of a user's entry with the groups; a group is called by the "
            "first part of its name. Empty for none."
        ),
    ] = "memberOf"
    group_base: Annotated[
        str,
        Meta(
            description="Entry below which groups count, or are searched; empty for all groups of "
            "`group_attribute`."
        ),
    ] = ""
    group_filter: Annotated[
        str,
        Meta(
            description="Filter that finds the groups of the entry `{dn}`, or of `{user}`, below "
            "`group_base`, such as `(member={dn})`; the name is the attribute `cn`. Empty to use "
            "`group_attribute`."
        ),
    ] = ""
    users: Annotated[
        Literal["apart", "same"],
        Meta(
            description="User that the directory identifies: apart is ldap:NAME, which differs "
            "from the realm's user NAME; same is the realm's user NAME."
        ),
    ] = "apart"
    timeout_s: Annotated[
        float,
        Meta(gt=0, description="Time for a sign-in at the directory, with the wait for its turn."),
    ] = 5.0
    remember_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Time for which a right password and its groups are remembered, so that "
            "not each HTTP request asks the directory.",
        ),
    ] = 60.0
    session_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time after which a session of a user of the directory ends, and has to "
            "sign in again.",
        ),
    ] = 43_200.0


class AccessSettings(Section, frozen=True, kw_only=True):
    mode: Annotated[
        Literal["off", "optional", "mandatory"],
        Meta(
            description="Authentication: off (loopback only, all clients have all rights), "
            "optional (clients that do not sign in are anonymous), mandatory."
        ),
    ] = "off"
    password_rounds: Annotated[
        int,
        Meta(
            ge=4_096,
            le=5_000_000,
            description="Rounds of PBKDF2 for new passwords; more rounds make guessing and signing "
            "in slower.",
        ),
    ] = 600_000
    password_length_min: Annotated[
        int, Meta(ge=1, le=128, description="Minimum length of a new password in characters.")
    ] = 8
    cleartext_passwords: Annotated[
        bool,
        Meta(
            description="Accept passwords and tokens over the network without TLS, where others "
            "can read them. Native clients do not need this, because they never send passwords."
        ),
    ] = False
    audit_files: Annotated[
        int,
        Meta(
            ge=0,
            description="Number of older files of each audit log to keep, of 16 MiB each; 0 keeps "
            "all files.",
        ),
    ] = 20
    failure_delay_s: Annotated[
        float, Meta(ge=0, description="Delay before a failed sign-in is answered.")
    ] = 1.0
    lockout_failures: Annotated[
        int,
        Meta(
            ge=0,
            description="Number of wrong passwords within `lockout_window_s` after which a user is "
            "locked; ten times as many from one host lock the host; 0 turns locking off.",
        ),
    ] = 10
    lockout_window_s: Annotated[
        float, Meta(gt=0, description="Time for which a wrong password counts.")
    ] = 600.0
    lockout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Duration of the first lock; each following lock lasts twice as long.",
        ),
    ] = 30.0
    lockout_max_s: Annotated[float, Meta(gt=0, description="Maximum duration of a lock.")] = 900.0
    token_keys: Annotated[
        str,
        Meta(
            description="JSON Web Key Set for bearer tokens: a file, or an https URL such as an "
            "OpenID provider's `jwks_uri`; empty to refuse tokens."
        ),
    ] = ""
    token_issuer: Annotated[str, Meta(description="Required issuer of a token.")] = ""
    token_audience: Annotated[str, Meta(description="Required audience of a token.")] = ""
    token_user_claim: Annotated[str, Meta(description="Claim with the name of the user.")] = "sub"
    token_users: Annotated[
        Literal["apart", "same"],
        Meta(
            description="User that a token identifies: apart is token:NAME, which differs from the "
            "realm's user NAME; same is the realm's user NAME (only if the issuer controls both "
            "kinds of names)."
        ),
    ] = "apart"
    certificate_users: Annotated[
        Literal["apart", "same"],
        Meta(
            description="User that a client certificate identifies: apart is certificate:NAME; "
            "same is the realm's user NAME."
        ),
    ] = "apart"
    token_groups_claim: Annotated[
        str, Meta(description="Claim with the names of groups; dots separate nested fields.")
    ] = "groups"
    login_idle_s: Annotated[
        float, Meta(gt=0, description="Time after which an unused console session ends.")
    ] = 3_600.0
    login_total_s: Annotated[
        float, Meta(gt=0, description="Maximum duration of a console session.")
    ] = 43_200.0
    logins_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of console sessions of one user; at the limit, a new "
            "session ends the one that was unused for longest.",
        ),
    ] = 100
    ldap: LdapSettings = LdapSettings()

    @property
    def lockout(self) -> LockoutRules:
        """The rules for locking users and hosts after wrong passwords."""
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
            "embedded in a program serves HTTP only if this is set explicitly."
        ),
    ] = True
    host: Annotated[
        str, Meta(description="Address of HTTP; empty for that of the native protocol.")
    ] = ""
    port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of HTTP; 0 takes any free port. The default is 9080, without HTTP if "
            "another process uses that port."
        ),
    ] = None
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of HTTP connections. At the limit, the connection that has "
            "been idle for longest is closed; if all have a request in progress, a few more "
            "connections may read /health, /ready and /metrics.",
        ),
    ] = 256
    connections_per_address_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of HTTP connections of one address, or of one /64 network "
            "of IPv6. All users behind a proxy share its address.",
        ),
    ] = 128
    hosts: Annotated[
        str,
        Meta(
            description="Comma-separated names by which browsers reach the realm. Requests with "
            "other names need a user, because a page of another site may have sent them by DNS "
            "rebinding. Addresses, localhost and any name over TLS are always accepted."
        ),
    ] = ""
    viewers_max: Annotated[
        int, Meta(ge=0, description="Maximum number of live views and streams of events.")
    ] = 100
    viewers_per_user_max: Annotated[
        int,
        Meta(ge=0, description="Maximum number of live views and streams of events of one user."),
    ] = 25
    leases_max: Annotated[
        int, Meta(ge=0, description="Maximum number of open leases of all clients.")
    ] = 1_000
    leases_per_user_max: Annotated[
        int, Meta(ge=0, description="Maximum number of open leases of one user.")
    ] = 100
    leased_events_max: Annotated[
        int, Meta(ge=0, description="Maximum number of events under leases of all clients.")
    ] = 1_000_000
    leased_events_per_user_max: Annotated[
        int, Meta(ge=0, description="Maximum number of events under leases of one user.")
    ] = 100_000
    requests_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of one user's requests in progress, including live views, "
            "downloads and other long requests.",
        ),
    ] = 128
    body_bytes: Annotated[
        int, Meta(ge=1_024, le=1 << 30, description="Maximum size of a request body in bytes.")
    ] = 32 << 20
    head_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Time within which the headers of a request must arrive."),
    ] = 20.0
    body_timeout_s: Annotated[
        float, Meta(gt=0, description="Time within which the body of a request must arrive.")
    ] = 60.0
    send_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Time after which a client that does not read is dropped."),
    ] = 30.0
    channels_named_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of channels and queues, of durables, and of connections "
            "with separate metrics.",
        ),
    ] = 1_000
    pipelines: Annotated[
        str,
        Meta(
            description="Folders with checkpoints of pipelines whose progress is shown, separated "
            "by ':'."
        ),
    ] = ""


class LimitSettings(Section, frozen=True, kw_only=True):
    max_event_bytes: Annotated[
        int, Meta(ge=1_024, le=60 << 20, description="Maximum size of an event in bytes.")
    ] = 20 << 20
    memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory in bytes for events that are kept in memory only: events of "
            "reliable and simple channels, and events of mixed channels that are not persistent.",
        ),
    ] = 1 << 30
    off_heap_bytes: Annotated[
        int, Meta(ge=0, description="Memory in bytes for events of off-heap channels.")
    ] = 1 << 30
    paged_bytes: Annotated[
        int, Meta(ge=0, description="Disk space in bytes for events of paged channels.")
    ] = 4 << 30
    index_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory in bytes for the values of publish keys, and for the states of "
            "merge channels whose events are on disk. A single channel may use half of the free "
            "part. 0 is no limit.",
        ),
    ] = 4 << 30
    property_names_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of property names of a channel, including those inside "
            "dictionaries; 0 is no limit.",
        ),
    ] = 1_000
    stage_bytes: Annotated[
        int, Meta(ge=0, description="Maximum bytes of staged, uncommitted Spark micro-batches.")
    ] = 2 << 30
    event_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Time for which an event without a TTL waits on a JMS channel for a "
            "disconnected subscriber, and a reply queue for its session.",
        ),
    ] = 60.0
    unsealed_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Bytes that are not yet in segment files, above which publishers wait.",
        ),
    ] = 512 << 20
    channels_max: Annotated[
        int, Meta(ge=0, description="Maximum number of channels and queues; 0 is no limit.")
    ] = 0
    connections_per_user_max: Annotated[
        int, Meta(ge=0, description="Maximum number of connections of one user; 0 is no limit.")
    ] = 0
    subscriptions_per_connection_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of subscriptions of a connection, or of live views of a "
            "user; 0 is no limit.",
        ),
    ] = 1_000
    mqtt_sessions_per_user_max: Annotated[
        int,
        Meta(ge=0, description="Maximum stored MQTT sessions of one user; 0 is no limit."),
    ] = 100_000
    mqtt_session_bytes_per_user_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum bytes of the stored MQTT sessions of one user, with filters and "
            "wills; 0 is no limit.",
        ),
    ] = 64 << 20
    mqtt_retained_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of topics with a retained MQTT message. With "
            "authentication, each user may use half of the free part. 0 is no limit.",
        ),
    ] = 1_000_000
    mqtt_retained_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum memory in bytes for these topics, about 300 bytes for each level, "
            "with the same shares per user; 0 is no limit.",
        ),
    ] = 2 << 30
    durables_per_channel_max: Annotated[
        int, Meta(ge=0, description="Maximum number of durables of one channel; 0 is no limit.")
    ] = 10_000
    in_flight_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum bytes of a connection's unanswered publishes; 0 is no limit.",
        ),
    ] = 0
    requests_per_s_max: Annotated[
        int,
        Meta(ge=0, description="Maximum rate of requests on one connection; 0 is no limit."),
    ] = 0


class StorageSettings(Section, frozen=True, kw_only=True):
    segment_bytes: Annotated[
        int, Meta(ge=4_096, description="Size in bytes above which a segment file is closed.")
    ] = 64 << 20
    journal_bytes: Annotated[
        int,
        Meta(ge=1 << 20, description="Size of the journal in bytes at which a snapshot is taken."),
    ] = 256 << 20
    snapshot_blocks: Annotated[
        int,
        Meta(
            ge=1,
            description="In a cluster, number of journal blocks after which a snapshot is also "
            "taken. A node that takes over reads each later block from the engine.",
        ),
    ] = 10_000
    snapshot_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            description="In a cluster, time after which a snapshot is also taken if data has been "
            "stored since the previous one.",
        ),
    ] = 60.0
    seal_interval_ms: Annotated[
        int,
        Meta(ge=1, description="Interval at which events are moved into segment files."),
    ] = 250
    sweep_interval_ms: Annotated[
        int, Meta(ge=1, description="Interval at which expired events are removed.")
    ] = 1_000


class ClusterSettings(Section, frozen=True, kw_only=True):
    engine: Annotated[
        str,
        Meta(
            description="URL of the storage engine that the nodes of a cluster share, with all its "
            "servers: `nats://HOST:PORT,HOST:PORT,HOST:PORT` or "
            "`postgresql://USER@HOST:PORT,HOST:PORT/NAME`. Empty for a realm without a cluster, "
            "which stores its data in its data directory. Requires the extra `cluster`."
        ),
    ] = ""
    name: Annotated[
        str,
        Meta(
            description="Name of the cluster, of lower-case letters, digits and '-'. It is the "
            "prefix of all names on the engine, so clusters with different names can share one "
            "engine.",
        ),
    ] = "penstock"
    node: Annotated[
        str,
        Meta(
            description="Name of this node, unique in the cluster. If empty, a name is generated "
            "at the first start and kept in the data directory.",
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="Name or address at which clients and the other nodes reach this node; "
            "empty for `listen.host`."
        ),
    ] = ""
    lease_s: Annotated[
        float,
        Meta(
            ge=2,
            le=60,
            description="Time without a sign of life after which another node takes over from the "
            "owner.",
        ),
    ] = 6.0
    reattach_s: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="Time for which a seat at an exclusive, priority or serial durable waits "
            "for its session after a takeover, before other sessions are served.",
        ),
    ] = 10.0
    outbox_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Maximum bytes of events that a join from a local channel of this node to "
            "a cluster-wide store has copied and the cluster has not stored yet. At the limit, "
            "events that would be copied are refused until the cluster has stored some.",
        ),
    ] = 1 << 30
    blobs: Annotated[
        str,
        Meta(
            description="Place of the cluster's segments and snapshots: `engine`, or the URI of an "
            "object store or of a folder that all nodes share, such as `s3://bucket/prefix`."
        ),
    ] = "engine"
    cache_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum bytes of recently read segments that a node caches in its data "
            "directory; other segments are read from `blobs`. 0 turns the cache off.",
        ),
    ] = 4 << 30
    secret_file: Annotated[
        str,
        Meta(
            description="File with the cluster's secret of at least 32 characters, the same on "
            "every node. Nodes use it to sign the identity of clients whose connections they "
            "relay. If empty, the first node generates a secret and stores it on the engine."
        ),
    ] = ""
    tls_authority: Annotated[
        str,
        Meta(
            description="PEM file of the certificate authorities that verify the engine's servers "
            "if `engine` is `tls://`; empty for those of the system."
        ),
    ] = ""
    tls_certificate: Annotated[
        str,
        Meta(
            description="PEM file of this node's certificate, for engines that require one. "
            "Requires `tls_key`."
        ),
    ] = ""
    tls_key: Annotated[
        str, Meta(description="PEM file of the private key of `tls_certificate`.")
    ] = ""
    relays_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of connections that a standby node relays to the owner; "
            "further clients are redirected to the owner.",
        ),
    ] = 1_000
    history_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port for read-only access to sealed history while the cluster has no "
            "quorum; the node listens there only then. 0 takes any free port. Without a port, the "
            "node does not offer history.",
        ),
    ] = None
    history_http_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="HTTP port for sealed history: console and API. Requires `history_port`. "
            "Without a port, HTTP is off there.",
        ),
    ] = None
    local_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="Port of the node's local channels, which are stored in its data directory "
            "and served by this node only; 0 takes any free port. Without a port, the node has "
            "cluster-wide channels only.",
        ),
    ] = None
    local_http_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="HTTP port of the node's local channels: console, API and metrics. "
            "Requires `local_port`. Without a port, HTTP is off there.",
        ),
    ] = None
    local_amqp_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="AMQP 1.0 port of the node's local channels. Requires `local_port`. "
            "Without a port, AMQP is off there.",
        ),
    ] = None
    local_mqtt_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="MQTT port of the node's local channels; its messages are stored in the "
            "local channel `<listen.mqtt_channel>-<node>`. Requires `local_port`. Without a port, "
            "MQTT is off there.",
        ),
    ] = None
    monitors: Annotated[
        str,
        Meta(
            description="Comma-separated URLs of the monitoring endpoints of the NATS servers; "
            "empty for port 8222 of each host of `engine`."
        ),
    ] = ""


class LogSettings(Section, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least severe level to log."),
    ] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(
            description="Format of log lines: json, text, or auto, which is text on a terminal and "
            "JSON elsewhere."
        ),
    ] = "auto"


class TelemetrySettings(Section, frozen=True, kw_only=True):
    endpoint: Annotated[
        str,
        Meta(
            description="URL of a collector of OpenTelemetry that takes OTLP over HTTP, such as "
            "`http://localhost:4318`; empty to send nothing. Requires the extra `otel`. Headers, "
            "certificates, sampling and the attributes of the realm are in OpenTelemetry's "
            "environment variables. A user and a password before the host are sent as a "
            "header and are not logged."
        ),
    ] = ""
    metrics: Annotated[bool, Meta(description="Send the metrics that `/metrics` shows.")] = True
    metrics_interval_s: Annotated[
        float, Meta(ge=1, le=86_400, description="Time between two transmissions of the metrics.")
    ] = 60.0
    spans: Annotated[
        bool,
        Meta(
            description="Send a span for each publish and settlement, for each fetch and pop over "
            "HTTP, and for each delivery of events whose trace context is sampled."
        ),
    ] = True


class TableSettings(Section, frozen=True, kw_only=True):
    fresh_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="Milliseconds for which loads of a table share a snapshot; 0 makes each "
            "load see all events that were acknowledged before it.",
        ),
    ] = 0
    hold_s: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="Seconds for which a loaded table can be read. Removed events stay in its "
            "files for that long.",
        ),
    ] = 600
    cache_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Maximum size in bytes of the files of all tables, in the folder `tables` "
            "of the data directory. Without a data directory they are in memory, at most 256 MiB.",
        ),
    ] = 4 << 30
    memory_events_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Maximum number of events in memory of a channel that is loaded as a "
            "table.",
        ),
    ] = 1_000_000
    snapshots_per_user_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="Maximum number of snapshots of tables that a user can read at the same "
            "time; a further load ends the oldest.",
        ),
    ] = 200


class Settings(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of this realm.")] = "penstock"
    listen: ListenSettings = ListenSettings()
    access: AccessSettings = AccessSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    storage: StorageSettings = StorageSettings()
    tables: TableSettings = TableSettings()
    cluster: ClusterSettings = ClusterSettings()
    log: LogSettings = LogSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
