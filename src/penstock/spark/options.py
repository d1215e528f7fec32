"""The options of the format ``penstock``: their names, what they may say, what is refused."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from penstock.client.urls import parse_url
from penstock.columns.selectors import Selector
from penstock.core.errors import InvalidArgument

URL_VARIABLE: Final = "PENSTOCK_URL"
"""The environment variable that names the realm where no option does."""

READ_LIMIT_EVENTS: Final = 1_000_000
"""Events of one micro-batch where nothing else is said: a restart after a long stop must not
read everything at once."""

_SOURCE: Final = (
    "url",
    "channel",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxEventsPerTrigger",
    "minPartitions",
    "selector",
    "columns",
    "includeHeaders",
    "access",
)
_SINK: Final = ("url", "channel", "txnAppId", "txnVersion")
_SPARKS_OWN: Final = frozenset(("path", "checkpointlocation", "queryname"))
_ACCESS: Final = ("auto", "local", "remote")


class Where(Struct, frozen=True):
    """A channel of a realm."""

    url: str
    channel: str


class SourceOptions(Struct, frozen=True):
    """What a read was asked for; see the table in the Spark guide."""

    where: Where
    starting: str | int | datetime | None = None
    """``earliest``, ``latest``, an event id or a time; None: the default of the kind of read."""
    ending: str | int | None = None
    """``latest``, or the first event id that is not read any more."""
    events_per_trigger: int = READ_LIMIT_EVENTS
    partitions_min: int | None = None
    selector: str = ""
    columns: tuple[str, ...] = ()
    """Chosen columns; none: all."""
    include_headers: bool = False
    access: str = "auto"


class SinkOptions(Struct, frozen=True):
    """What a write was asked for."""

    where: Where
    app: str = ""
    """Names the transactions of this writer; empty: the query's id, or a new one a write."""
    version: int | None = None
    """Number of a batch write within ``app``."""


def source_options(given: Mapping[str, str], default_url: str = "") -> SourceOptions:
    """Raises ``InvalidArgument`` naming the option and what it may be."""
    texts = _known(given, _SOURCE, _SINK)
    where = _where(given, texts, default_url)
    starting: str | int | datetime | None
    starting = _offset("startingOffsets", texts, where.channel)
    if "startingTimestamp" in texts:
        if starting is not None:
            raise InvalidArgument("give startingOffsets or startingTimestamp, not both")
        starting = _moment(texts["startingTimestamp"])
    selector = texts.get("selector", "").strip()
    if selector:
        selector = Selector(selector).text
    ending = _offset("endingOffsets", texts, where.channel)
    if ending == "earliest":
        raise InvalidArgument('endingOffsets is "earliest": nothing lies before it')
    return SourceOptions(
        where,
        starting,
        ending,
        _count("maxEventsPerTrigger", texts) or READ_LIMIT_EVENTS,
        _count("minPartitions", texts),
        selector,
        tuple(filter(None, map(str.strip, texts.get("columns", "").split(",")))),
        _flag("includeHeaders", texts),
        _choice("access", texts, _ACCESS),
    )


def sink_options(given: Mapping[str, str], default_url: str = "") -> SinkOptions:
    """Raises ``InvalidArgument`` naming the option and what it may be."""
    texts = _known(given, _SINK, _SOURCE)
    version = texts.get("txnVersion")
    if version is not None and not version.isdecimal():
        raise InvalidArgument(f"txnVersion is {version!r}; a whole number, 0 or more, is needed")
    app = texts.get("txnAppId", "").strip()
    return SinkOptions(
        _where(given, texts, default_url), app, None if version is None else int(version)
    )


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The hint for a name that is not known: the closest one, else all of them."""
    lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[close[0]]}?" if close else f"there are {', '.join(known)}"


def _known(
    given: Mapping[str, str], known: tuple[str, ...], elsewhere: tuple[str, ...]
) -> dict[str, str]:
    """The options under their own names; Spark hands them over in lower case."""
    names = {name.lower(): name for name in known}
    others = {name.lower(): name for name in elsewhere}
    texts = {}
    for key, text in given.items():
        lower = key.lower()
        if lower in names:
            texts[names[lower]] = text
        elif lower in others:
            side = "write" if known is _SOURCE else "read"
            raise InvalidArgument(f"option {others[lower]} is for a {side}")
        elif lower not in _SPARKS_OWN and not lower.startswith("spark."):
            raise InvalidArgument(f"unknown option {key!r}: {nearest(key, known)}")
    return texts


def _where(given: Mapping[str, str], texts: Mapping[str, str], default_url: str) -> Where:
    url = texts.get("url") or default_url or os.environ.get(URL_VARIABLE, "")
    if not url:
        raise InvalidArgument(
            f"no realm is named: set the option url, or {URL_VARIABLE} before Spark starts; "
            "it looks like penstock://localhost:9000"
        )
    parse_url(url)
    path = next((text for key, text in given.items() if key.lower() == "path"), "")
    channel = texts.get("channel") or path.strip("/")
    if not channel:
        raise InvalidArgument('no channel is named: set the option channel, or load("orders")')
    if texts.get("channel") and path and path.strip("/") != texts["channel"]:
        raise InvalidArgument(
            f"the option channel says {texts['channel']}, the path says {path}; give one of them"
        )
    return Where(url, channel)


def _offset(option: str, texts: Mapping[str, str], channel: str) -> str | int | None:
    text = texts.get(option)
    if text is None:
        return None
    named: Any = text.strip()
    if named.startswith("{"):
        named = _of_channel(option, named, channel)
    if isinstance(named, str) and named.lower() in ("earliest", "latest"):
        return named.lower()
    if isinstance(named, str) and named.isdecimal():
        return int(named)
    if isinstance(named, int) and not isinstance(named, bool) and named >= 0:
        return named
    raise InvalidArgument(
        f'{option} is {text!r}; it is "earliest", "latest", an event id, or JSON such as '
        f'{{"{channel}": 1200}}'
    )


def _of_channel(option: str, text: str, channel: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} is no JSON: {error}") from error
    if set(found) != {channel}:
        raise InvalidArgument(f"{option} names {', '.join(found)}; this reads {channel}")
    return found[channel]


def _moment(text: str) -> datetime:
    try:
        if text.strip().isdecimal():
            return datetime.fromtimestamp(int(text) / 1_000, UTC)
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(
            f"startingTimestamp is {text!r}; it is milliseconds since 1970, or a time such as "
            "2013-01-31T09:30:00Z"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _count(option: str, texts: Mapping[str, str]) -> int | None:
    text = texts.get(option)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidArgument(f"{option} is {text!r}; a whole number, 1 or more, is needed")
    return int(text)


def _flag(option: str, texts: Mapping[str, str]) -> bool:
    return _choice(option, {option: texts.get(option, "false")}, ("false", "true")) == "true"


def _choice(option: str, texts: Mapping[str, str], choices: tuple[str, ...]) -> str:
    text = texts.get(option, choices[0]).strip().lower()
    if text not in choices:
        raise InvalidArgument(f"{option} is {text!r}; it is {' or '.join(choices)}")
    return text
