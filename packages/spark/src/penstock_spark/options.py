"""The options of the format ``penstock``: their names, values, and errors."""

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
"""Environment variable with the URL of the realm; the option ``url`` wins over it."""

REALM_RESTARTS: Final = 5
"""Default number of restarts of the realm that one commit survives."""

DURABLE_ATTEMPTS: Final = 50
"""Attempts to open a durable in use. A killed query may hold its durable for another moment: its
process notices the kill at its next write to Spark."""

LONG_POLL_S: Final = 1.0

READ_LIMIT_EVENTS: Final = 1_000_000
"""Default maximum of events in one micro-batch: a restart after a long stop must not read
everything at once."""

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
    """A realm, and the seconds that callers wait for it when it is unavailable."""

    url: str
    reconnect_s: float = RECONNECT_TIMEOUT_S

    def __repr__(self) -> str:
        return f"RealmAt({safe(self.url)!r})"


class Where(Struct, frozen=True):
    """The location of a channel or queue: the realm's URL and a name."""

    url: str
    channel: str
    kind: Literal["channel", "queue", "either"] = "channel"
    reconnect_s: float = RECONNECT_TIMEOUT_S

    @property
    def realm(self) -> RealmAt:
        return RealmAt(self.url, self.reconnect_s)

    def __repr__(self) -> str:
        return f"Where({safe(self.url)!r}, {self.channel!r}, {self.kind!r})"


class SourceOptions(Struct, frozen=True):
    """The options of a read; see the table in the Spark guide."""

    url: str
    choice: Choice
    """The channels or queues."""
    starting: StartPositions = StartPositions()
    ending: StartPositions = StartPositions()
    """End positions; an event id is exclusive."""
    events_per_trigger: int = READ_LIMIT_EVENTS
    bytes_per_trigger: int | None = None
    """Approximate maximum of stored bytes in one micro-batch; None: unlimited."""
    partitions_min: int | None = None
    selector: str = ""
    columns: tuple[str, ...] = ()
    """Chosen columns; none: all."""
    include_headers: bool = False
    include_channel: bool = False
    """Whether to add a column with the name of each event's channel."""
    include_origin: bool = False
    fail_on_data_loss: bool | None = None
    """Whether events removed before they were read end the query; None: only in streams."""
    access: str = "auto"
    durable: str = ""
    """Name of a durable: of each channel, only its unacknowledged events are read."""
    durable_attempts: int = DURABLE_ATTEMPTS
    """Attempts to open the durable while it is in use, before the last one."""
    long_poll_s: float = LONG_POLL_S
    """Seconds that a stream waits for new events before it reports an unchanged position to
    Spark."""
    include_nulls: bool = False
    """Whether to add a column that distinguishes null from absent."""
    files: str = ""
    """URI of a copy of the realm's data directory; empty: read the realm's own files."""
    reconnect_s: float = RECONNECT_TIMEOUT_S
    """Seconds that tasks and queries wait for an unavailable realm."""
    error_secret: str = ""
    """Authenticates errors for the driver; empty: they are not marked."""

    def __repr__(self) -> str:
        return f"SourceOptions({safe(self.url)!r}, {self.choice!r})"

    @property
    def realm(self) -> RealmAt:
        return RealmAt(self.url, self.reconnect_s)

    @property
    def where(self) -> Where:
        """The channel. Raises ``InvalidArgument`` if the options may select several."""
        if not self.choice.is_one:
            raise InvalidArgument(
                f"exactly one channel is needed here; this reads {self.choice.text}"
            )
        return self.where_is(self.choice.names[0])

    def either(self, *, fails_on_loss: bool) -> SourceOptions:
        """Return the options with ``fails_on_loss`` as the default of ``failOnDataLoss``."""
        fail_on_data_loss = self.fail_on_data_loss
        return replace(
            self,
            fail_on_data_loss=fails_on_loss if fail_on_data_loss is None else fail_on_data_loss,
        )

    def where_is(self, name: str) -> Where:
        """Return the location of one of the channels or queues."""
        return Where(
            self.url,
            name,
            "queue" if self.choice.queues else "either",
            reconnect_s=self.reconnect_s,
        )


class SinkOptions(Struct, frozen=True):
    """The options of a write."""

    where: Where
    """The default target; without a channel, every row must name one."""
    app: str = ""
    """Name of this writer's transactions; empty: the query's id, or a new id for each write."""
    version: int | None = None
    """Number of a batch write within ``app``."""
    channel_column: str = ""
    """The column that names the channel of a row; empty: all rows go to one channel."""
    delta: bool = False
    """Whether all rows are changes to events of a merge channel (SEM K2)."""
    delta_column: str = ""
    """The boolean column that marks rows that are changes."""
    nulls_are_absent: bool = False
    """Whether a null in a column means that the event does not have the property."""
    value: Literal["", "data", "property"] = ""
    """The meaning of a column ``value``: the event's data or a property; empty if the option is not
    given."""
    realm_restarts: int = REALM_RESTARTS
    """Number of restarts of the realm that one commit survives."""
    content: str = ""
    """Digest of the content of a batch write under ``app`` and ``version``."""
    checkpoint: str = ""
    """The checkpoint of a stream; its entries identify the content of micro-batches."""
    error_secret: str = ""
    """Authenticates errors for the driver; empty: they are not marked."""


def source_options(options: Mapping[str, str], default_url: str = "") -> SourceOptions:
    """Parse the options of a read. Raises ``InvalidArgument``, which names the option and its
    possible values."""
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
    """Parse the options of a write. Raises ``InvalidArgument``, which names the option and its
    possible values."""
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
    """Return the options for rows with these columns: without another target, a column
    ``channel`` names the target of each row. Raises ``InvalidArgument`` if rows have no target."""
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
    """Return the hint for an unknown name: the most similar allowed name, or all of them."""
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return (
        f"did you mean {by_lower_case[matches[0]]}?" if matches else f"there are {', '.join(names)}"
    )


def _parse_names(
    options: Mapping[str, str], allowed: tuple[str, ...], other_side: tuple[str, ...]
) -> dict[str, str]:
    """Return the options under their documented names; Spark passes names in lower case."""
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
    """Return the target; its channel may be empty, because rows can name theirs."""
    return Where(
        _url(texts, default_url),
        _destination_of(options, texts, "channel"),
        reconnect_s=_seconds("reconnectTimeout", texts),
    )


def _seconds(option: str, texts: Mapping[str, str]) -> float:
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
    """Return a digest of ``txnContent``: the realm stores it with the number of the write."""
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
    """Return the URL of the realm; if ``url`` is empty, that of the environment. Raises
    ``InvalidArgument``."""
    url = url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise InvalidArgument(
            f"no realm is given: set the option url, or {URL_VARIABLE} before Spark starts; "
            "it looks like penstock://localhost:9000"
        )
    parse_url(url)
    return url


def _parse_choice(options: Mapping[str, str], texts: Mapping[str, str]) -> Choice:
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
    path = next((text for key, text in options.items() if key.lower() == "path"), "")
    destination = texts.get(option) or path.strip("/")
    if texts.get(option) and path and path.strip("/") != texts[option]:
        raise InvalidArgument(
            f"the option {option} is {texts[option]} but the path is {path}; give only one of them"
        )
    return destination


def _count(option: str, texts: Mapping[str, str]) -> int | None:
    text = texts.get(option)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidArgument(f"{option} is {text!r}; a whole number, 1 or more, is needed")
    return int(text)


def _flag(option: str, texts: Mapping[str, str], *, otherwise: bool = False) -> bool:
    text = texts.get(option, str(otherwise))
    return _one_of(option, {option: text}, ("false", "true")) == "true"


def _one_of(option: str, texts: Mapping[str, str], choices: tuple[str, ...]) -> str:
    text = texts.get(option, choices[0]).strip().lower()
    if text not in choices:
        raise InvalidArgument(f"{option} is {text!r}; it must be {' or '.join(choices)}")
    return text
