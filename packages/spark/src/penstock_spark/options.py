"""Parses the options of the format ``penstock``, and explains errors in them."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from penstock.client.connection.connection import RECONNECT_TIMEOUT_S
from penstock.client.connection.urls import parse_url, safe
from penstock.client.copies.object_store_uri import check_place
from penstock_core.vocabulary.choice import Choice, choice_of
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.names import durable_name
from penstock_spark.errors.error_marks import SECRET_OPTION, secret_in
from penstock_spark.session.starts import StartPositions, parse_positions

URL_VARIABLE: Final = "PENSTOCK_URL"
"""Environment variable with the URL of the realm. The option ``url`` overrides it."""

REALM_RESTARTS: Final = 5
"""Default for the largest number of restarts of the realm during one commit."""

DURABLE_ATTEMPTS: Final = 50
"""Default number of attempts to open a durable that is in use. A killed query may hold its durable
for another moment, because its process notices the kill only at its next write to Spark."""

LONG_POLL_S: Final = 1.0
"""Default for :attr:`SourceOptions.long_poll_s`, in seconds."""

READ_LIMIT_EVENTS: Final = 1_000_000
"""Default for the largest number of events in a micro-batch. Without a limit, a query would read
everything at once after a long stop."""

_SOURCE: Final = (
    "url",
    "channel",
    "queue",
    "durable",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "selector",
    "columns",
    "includeHeaders",
    "includeChannel",
    "includeOrigin",
    "includeNulls",
    "failOnDataLoss",
    "access",
    "files",
    "reconnectTimeout",
)
_SINK: Final = (
    "url",
    "channel",
    "channelColumn",
    "delta",
    "deltaColumn",
    "nulls",
    "value",
    "txnAppId",
    "txnVersion",
    "txnContent",
    "reconnectTimeout",
    "realmRestarts",
)
_SPARK_OPTIONS: Final = frozenset(("path", "checkpointlocation", "queryname"))
_CATALOG_OPTIONS: Final = frozenset(("provider", "owner"))
"""Options that only Spark's catalog adds."""
_CATALOG_PREFIX: Final = "option."
"""Prefix of the options of a table in Spark's catalog."""
_INTERNAL: Final = frozenset((SECRET_OPTION.lower(),))
"""Undocumented options that Penstock sets itself."""
_ACCESS: Final = ("auto", "local", "remote")


class RealmAt(Struct, frozen=True):
    """The URL of a realm, and the time to wait for the realm while it is unavailable."""

    url: str
    reconnect_s: float = RECONNECT_TIMEOUT_S
    """Time to wait for an unavailable realm, in seconds."""

    def __repr__(self) -> str:
        return f"RealmAt({safe(self.url)!r})"


class Where(Struct, frozen=True):
    """The address of a channel or queue: the realm's URL and a name."""

    url: str
    channel: str
    """Name of the channel or queue."""
    kind: Literal["channel", "queue", "either"] = "channel"
    reconnect_s: float = RECONNECT_TIMEOUT_S
    """Time to wait for an unavailable realm, in seconds."""

    @property
    def realm(self) -> RealmAt:
        return RealmAt(self.url, self.reconnect_s)

    def __repr__(self) -> str:
        return f"Where({safe(self.url)!r}, {self.channel!r}, {self.kind!r})"


class SourceOptions(Struct, frozen=True):
    """The parsed options of a read. The Spark guide describes the options."""

    url: str
    choice: Choice
    """The names and patterns of the channels or queues to read."""
    starting: StartPositions = StartPositions()
    """Positions of the first events to read."""
    ending: StartPositions = StartPositions()
    """Positions before which a batch read ends."""
    events_per_trigger: int = READ_LIMIT_EVENTS
    """Largest number of events in a micro-batch."""
    bytes_per_trigger: int | None = None
    """Approximate limit for the stored bytes in a micro-batch; None means no limit."""
    partitions_min: int | None = None
    """Smallest number of partitions; None means that the size of the read decides."""
    selector: str = ""
    """A condition on the events; empty means all events."""
    columns: tuple[str, ...] = ()
    """Names of the columns to read; empty means all columns."""
    include_headers: bool = False
    """Whether to add a column with the headers of each event."""
    include_channel: bool = False
    """Whether to add a column with the name of each event's channel."""
    include_origin: bool = False
    """Whether to add a column with the origin of each event."""
    fail_on_data_loss: bool | None = None
    """Whether the query fails if events were removed before they could be read. None means that
    streams fail and batch reads do not."""
    access: str = "auto"
    """Whether tasks read sealed files: "auto" if they can reach the files, "local" always, "remote"
    never."""
    durable: str = ""
    """Name of a durable of each channel, whose outstanding events are read; empty means that all
    stored events are read."""
    durable_attempts: int = DURABLE_ATTEMPTS
    """Number of retries if the durable is in use."""
    long_poll_s: float = LONG_POLL_S
    """Longest time, in seconds, that a stream waits for new events before it reports an unchanged
    position to Spark."""
    include_nulls: bool = False
    """Whether to add a column that distinguishes null properties from absent ones."""
    files: str = ""
    """URI of a copy of the realm's data directory; empty means that the realm's own files are
    read."""
    reconnect_s: float = RECONNECT_TIMEOUT_S
    """Time that tasks and queries wait for an unavailable realm, in seconds."""
    error_secret: str = ""
    """Secret that authenticates errors of tasks for the driver; empty means that errors are not
    marked."""

    def __repr__(self) -> str:
        return f"SourceOptions({safe(self.url)!r}, {self.choice!r})"

    @property
    def realm(self) -> RealmAt:
        return RealmAt(self.url, self.reconnect_s)

    @property
    def where(self) -> Where:
        """The address of the only channel. Raises ``InvalidArgument`` if the options may select
        several channels."""
        if not self.choice.is_one:
            raise InvalidArgument(
                f"exactly one channel is needed here; this reads {self.choice.text}"
            )
        return self.where_is(self.choice.names[0])

    def with_loss_default(self, *, fails_on_loss: bool) -> SourceOptions:
        """Return the options with ``fails_on_loss`` as the default of ``failOnDataLoss``."""
        fail_on_data_loss = self.fail_on_data_loss
        return replace(
            self,
            fail_on_data_loss=fails_on_loss if fail_on_data_loss is None else fail_on_data_loss,
        )

    def where_is(self, name: str) -> Where:
        """Return the address of the selected channel or queue ``name``."""
        return Where(
            self.url,
            name,
            "queue" if self.choice.queues else "either",
            reconnect_s=self.reconnect_s,
        )


class SinkOptions(Struct, frozen=True):
    """The parsed options of a write."""

    where: Where
    """The default target. If it has no channel, every row must name one."""
    app: str = ""
    """Name of the writer, which identifies its transactions together with the number. Empty means
    the id of the streaming query, or a new id for a batch write."""
    version: int | None = None
    """Number of a batch write of ``app``; None for a write without a number."""
    channel_column: str = ""
    """Column with the target channel of each row; empty means that all rows go to one channel."""
    delta: bool = False
    """Whether all rows are deltas, which change the state of a key in a merge channel (SEM K2)."""
    delta_column: str = ""
    """Boolean column that is true for rows that are deltas; empty without such a column."""
    nulls_are_absent: bool = False
    """Whether a null in a column means that the event does not have the property."""
    value: Literal["", "data", "property"] = ""
    """Whether a column ``value`` is the data of the event or a property; empty if the option is not
    given."""
    realm_restarts: int = REALM_RESTARTS
    """Largest number of restarts of the realm during one commit."""
    content: str = ""
    """Digest that identifies the content of a batch write; empty if it is unknown."""
    checkpoint: str = ""
    """Path or URI of the checkpoint of a stream, whose entries identify the content of
    micro-batches."""
    error_secret: str = ""
    """Secret that authenticates errors of tasks for the driver; empty means that errors are not
    marked."""


def source_options(options: Mapping[str, str], default_url: str = "") -> SourceOptions:
    """Parse the options of a read. ``default_url`` is used without the option ``url``.

    Raises ``InvalidArgument`` for an unknown option or a wrong value; the text names the option and
    the possible values.
    """
    texts = _parse_names(options, _SOURCE, _SINK)
    url = _url(texts, default_url)
    choice = _parse_choice(options, texts)
    selector = texts.get("selector", "").strip()
    if selector:
        from penstock_core.columns.selectors import Selector

        selector = Selector(selector).text
    return SourceOptions(
        url,
        choice,
        parse_positions("starting", texts, choice),
        ending=parse_positions("ending", texts, choice),
        events_per_trigger=_count("maxEventsPerTrigger", texts) or READ_LIMIT_EVENTS,
        bytes_per_trigger=_count("maxBytesPerTrigger", texts),
        partitions_min=_count("minPartitions", texts),
        selector=selector,
        columns=tuple(filter(None, map(str.strip, texts.get("columns", "").split(",")))),
        include_headers=_flag("includeHeaders", texts),
        include_channel=_flag("includeChannel", texts, otherwise=not choice.is_one),
        include_origin=_flag("includeOrigin", texts),
        fail_on_data_loss=_flag("failOnDataLoss", texts) if "failOnDataLoss" in texts else None,
        access=_one_of("access", texts, _ACCESS),
        durable=_durable(texts, choice),
        include_nulls=_flag("includeNulls", texts),
        files=_files(texts),
        reconnect_s=_seconds("reconnectTimeout", texts),
        error_secret=secret_in(options),
    )


def sink_options(options: Mapping[str, str], default_url: str = "") -> SinkOptions:
    """Parse the options of a write. ``default_url`` is used without the option ``url``.

    Raises ``InvalidArgument`` for an unknown option or a wrong value; the text names the option and
    the possible values.
    """
    texts = _parse_names(options, _SINK, _SOURCE)
    version = texts.get("txnVersion")
    if version is not None and not version.isdecimal():
        raise InvalidArgument(f"txnVersion is {version!r}; a whole number, 0 or more, is needed")
    app = texts.get("txnAppId", "").strip()
    delta, delta_column = _flag("delta", texts), texts.get("deltaColumn", "").strip()
    if delta and delta_column:
        raise InvalidArgument("give delta=true or deltaColumn, not both")
    return SinkOptions(
        _target(options, texts, default_url),
        app,
        None if version is None else int(version),
        channel_column=texts.get("channelColumn", "").strip(),
        delta=delta,
        delta_column=delta_column,
        nulls_are_absent=_one_of("nulls", texts, ("keep", "absent")) == "absent",
        value=_value(texts),
        realm_restarts=_restarts(texts),
        content=_content(texts),
        checkpoint=next(
            (text for key, text in options.items() if key.lower() == "checkpointlocation"), ""
        ),
        error_secret=secret_in(options),
    )


def with_routes(
    options: SinkOptions, names: Sequence[str], texts: Mapping[str, str]
) -> SinkOptions:
    """Return the options of a write for rows with the columns ``names``.

    If the options ``texts`` name no target, a column ``channel`` names the target of each row.
    Raises ``InvalidArgument`` if rows have no target, or two.
    """
    has_channel_column = any(key.lower() == "channelcolumn" for key in texts)
    if "channel" not in names or has_channel_column:
        if not options.where.channel and not options.channel_column:
            raise InvalidArgument(
                'no channel is given: set the option channel, or save("orders"), or give the '
                "rows a column channel"
            )
        return options
    if options.where.channel:
        name = options.where.channel
        raise InvalidArgument(
            f"the write names the channel {name} and the rows have a column channel: leave the "
            f'column out with .drop("channel"), set channelColumn=channel to publish each row to '
            f'the channel it names ({name} if null), or channelColumn="" to keep it as a property'
        )
    return replace(options, channel_column="channel")


def nearest(name: str, names: tuple[str, ...]) -> str:
    """Return a hint for error texts about an unknown name: the most similar of ``names``, or all of
    them."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return (
        f"did you mean {by_lower_case[matches[0]]}?" if matches else f"there are {', '.join(names)}"
    )


def _parse_names(
    options: Mapping[str, str], allowed: tuple[str, ...], other_side: tuple[str, ...]
) -> dict[str, str]:
    """Return the options by their documented names, because Spark passes names in lower case.

    Raises ``InvalidArgument`` for an unknown option, or one that is not ``allowed`` but belongs to
    ``other_side``: a read or a write.
    """
    names = {name.lower(): name for name in allowed}
    other_names = {name.lower(): name for name in other_side}
    texts = {}
    for key, text in options.items():
        lower_key = key.lower()
        if lower_key in names:
            texts[names[lower_key]] = text
        elif lower_key in other_names:
            side = "write" if allowed is _SOURCE else "read"
            raise InvalidArgument(f"option {other_names[lower_key]} is only for a {side}")
        elif lower_key in _CATALOG_OPTIONS or lower_key.startswith(_CATALOG_PREFIX):
            raise InvalidArgument(
                "a channel cannot be a table of Spark's catalog: instead of CREATE TABLE use "
                "CREATE TEMPORARY VIEW name USING penstock OPTIONS (channel 'orders', ...)"
            )
        # Spark passes options of its own with every read and write.
        elif lower_key not in _SPARK_OPTIONS | _INTERNAL and not lower_key.startswith("spark."):
            raise InvalidArgument(f"unknown option {key!r}: {nearest(key, allowed)}")
    return texts


def _target(options: Mapping[str, str], texts: Mapping[str, str], default_url: str) -> Where:
    """Return the target of a write. Its channel may be empty, because rows can name their
    targets."""
    return Where(
        _url(texts, default_url),
        _destination_of(options, texts, "channel"),
        reconnect_s=_seconds("reconnectTimeout", texts),
    )


def _seconds(option: str, texts: Mapping[str, str]) -> float:
    """Return the value of an option in seconds; the reconnect timeout if it is not given."""
    text = texts.get(option)
    try:
        seconds = RECONNECT_TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(f"{option} is {text!r}; a number of seconds, 0 or more, is needed")
    return seconds


def _restarts(texts: Mapping[str, str]) -> int:
    text = texts.get("realmRestarts", str(REALM_RESTARTS)).strip()
    if not text.isdecimal():
        raise InvalidArgument(f"realmRestarts is {text!r}; a whole number, 0 or more, is needed")
    return int(text)


def _content(texts: Mapping[str, str]) -> str:
    """Return a digest of the option ``txnContent``; empty if it is not given. The realm stores the
    digest with the number of the write."""
    text = texts.get("txnContent", "")
    if text and "txnVersion" not in texts:
        raise InvalidArgument("txnContent is for batch writes with txnAppId and txnVersion")
    return hashlib.sha256(text.encode()).hexdigest()[:24] if text else ""


def _value(texts: Mapping[str, str]) -> Literal["", "data", "property"]:
    if "value" not in texts:
        return ""
    return "data" if _one_of("value", texts, ("data", "property")) == "data" else "property"


def _url(texts: Mapping[str, str], default_url: str) -> str:
    return realm_url(texts.get("url") or default_url)


def realm_url(url: str) -> str:
    """Return ``url``, or the URL of the environment variable if ``url`` is empty.

    Raises ``InvalidArgument`` if neither is set or the URL is not valid.
    """
    url = url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise InvalidArgument(
            f"no realm is given: set the option url, or {URL_VARIABLE} before Spark starts; "
            "it looks like penstock://localhost:9000"
        )
    parse_url(url)
    return url


def _parse_choice(options: Mapping[str, str], texts: Mapping[str, str]) -> Choice:
    """Return the channels or queues that a read selects."""
    if texts.get("channel") and texts.get("queue"):
        raise InvalidArgument("give the option channel or the option queue, not both")
    option = "queue" if texts.get("queue") else "channel"
    return choice_of(_required_destination(options, texts, option), queues=option == "queue")


def _durable(texts: Mapping[str, str], choice: Choice) -> str:
    text = texts.get("durable", "").strip()
    if text and choice.queues:
        raise InvalidArgument("queues have no durables: leave out durable, or name a channel")
    return durable_name(text) if text else ""


def _files(texts: Mapping[str, str]) -> str:
    text = texts.get("files", "").strip()
    if not text:
        return ""
    if _one_of("access", texts, _ACCESS) == "remote":
        raise InvalidArgument(
            "access=remote does not read files, but the option files names their location: leave "
            "out one of the two"
        )
    return check_place(text, "files")


def _required_destination(options: Mapping[str, str], texts: Mapping[str, str], option: str) -> str:
    destination = _destination_of(options, texts, option)
    if not destination:
        raise InvalidArgument('no channel is given: set the option channel, or load("orders")')
    return destination


def _destination_of(options: Mapping[str, str], texts: Mapping[str, str], option: str) -> str:
    """Return the channel or queue that the option names, or the path of ``load`` or ``save``; empty
    if neither is given."""
    path = next((text for key, text in options.items() if key.lower() == "path"), "")
    destination = texts.get(option) or path.strip("/")
    if texts.get(option) and path and path.strip("/") != texts[option]:
        raise InvalidArgument(
            f"the option {option} is {texts[option]} but the path is {path}; give only one of them"
        )
    return destination


def _count(option: str, texts: Mapping[str, str]) -> int | None:
    """Return the value of an option that is a positive number; None if it is not given."""
    text = texts.get(option)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidArgument(f"{option} is {text!r}; a whole number, 1 or more, is needed")
    return int(text)


def _flag(option: str, texts: Mapping[str, str], *, otherwise: bool = False) -> bool:
    """Return the value of an option that is true or false; ``otherwise`` if it is not given."""
    text = texts.get(option, str(otherwise))
    return _one_of(option, {option: text}, ("false", "true")) == "true"


def _one_of(option: str, texts: Mapping[str, str], choices: tuple[str, ...]) -> str:
    """Return the value of an option, in lower case; the first of ``choices`` if it is not given."""
    text = texts.get(option, choices[0]).strip().lower()
    if text not in choices:
        raise InvalidArgument(f"{option} is {text!r}; it must be {' or '.join(choices)}")
    return text
