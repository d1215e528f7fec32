"""Reduces log lines and metrics to what a support archive may have.

Both work with lists of what is allowed, because a log line or a label may contain anything: names
of users and clients, addresses, URLs, and texts of errors that quote a request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

LINES_MAX: Final = 2_000
"""Maximum number of log lines in an archive; the newest ones are kept."""

_EVENT: Final = re.compile(r"[a-z][a-z_]*(?:\.[a-z][a-z_]*)+")
"""Names of the realm's own log events. Other libraries write sentences, which are left out."""
_LEVELS: Final = frozenset(("debug", "info", "warning", "error", "critical"))
_TIME: Final = re.compile(r"[0-9][0-9T:.+Z -]{9,40}")
_TEXTS: Final[Mapping[str, re.Pattern[str]]] = {
    "code": re.compile(r"[a-z][a-z-]{1,60}"),
    "version": re.compile(r"[0-9][0-9a-z.+]{0,30}"),
    "python": re.compile(r"[0-9][0-9a-z.+]{0,30}"),
    "loop": re.compile(r"asyncio|uvloop"),
    "signal": re.compile(r"SIG[A-Z]+"),
}
"""Keys whose texts are kept if they have the expected form."""
_FRAME: Final = re.compile(r'File "(?:[^"\n]*/)?([\w.-]+\.py)", line ([0-9]+), in (\w+|<\w+>)')
FRAMES_MAX: Final = 50
"""Maximum number of lines of code of one traceback."""

_LINE: Final = re.compile(r"(?P<time>\S+ \S+) \[(?P<level>\w+) *\] (?P<event>\S+) *(?P<rest>.*)")
_FIELD: Final = re.compile(r" *(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s'\"]+)")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")

_SAMPLE: Final = re.compile(
    r"(?P<name>(?:penstock|process)_\w+)(?:\{(?P<labels>.*)\})? (?P<value>[0-9.eE+-]+|NaN|[+-]Inf)"
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_TYPE: Final = re.compile(r"# TYPE (?:penstock|process)_\w+ [a-z]+")
_LABELS: Final = frozenset(("name", "kind", "cause", "le", "protocol", "code", "version"))
"""Labels of samples that are kept: those of channels and queues, and fixed words. Durables,
connections, users, nodes and servers have other labels."""


def log_lines(text: str) -> list[dict[str, Any]]:
    """Return the newest lines of a log, in either of its formats: time, level, event, numbers,
    truth values, texts of a known form, and the code lines of a traceback."""
    entries = [entry for line in text.splitlines() if (entry := _entry(line)) is not None]
    return entries[-LINES_MAX:]


def _entry(line: str) -> dict[str, Any] | None:
    """Return what is kept of a line; None if the line is not one of the realm's log."""
    fields = _json_fields(line) if line.startswith("{") else _text_fields(_COLOUR.sub("", line))
    event, level, time = (fields.pop(key, "") for key in ("event", "level", "timestamp"))
    if not (isinstance(event, str) and _EVENT.fullmatch(event) and level in _LEVELS):
        return None
    entry: dict[str, Any] = {"level": level, "event": event}
    if isinstance(time, str) and _TIME.fullmatch(time):
        entry["timestamp"] = time
    entry |= {name: value for name, value in fields.items() if _may_show(name, value)}
    traceback = fields.get("exception")
    if isinstance(traceback, str) and (frames := _FRAME.findall(traceback)):
        entry["frames"] = [":".join(frame) for frame in frames[-FRAMES_MAX:]]
    return entry


def _json_fields(line: str) -> dict[str, Any]:
    """Return the fields of a log line in JSON; empty if it is not a JSON object."""
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return {**fields, "level": str(fields.get("level"))} if isinstance(fields, dict) else {}


def _text_fields(line: str) -> dict[str, Any]:
    """Return the fields of a line for people. A value in quotes may look like further fields, so no
    field is kept of a line that has other text, too."""
    match = _LINE.fullmatch(line)
    if match is None:
        return {}
    fields: dict[str, Any] = {}
    rest = match["rest"].rstrip()
    place = 0
    while (field := _FIELD.match(rest, place)) is not None:
        name, value = field.groups()
        fields[name] = float(value) if _NUMBER.fullmatch(value) else value
        place = field.end()
    if place < len(rest):
        fields = {}
    times = {"event": match["event"], "level": match["level"], "timestamp": match["time"]}
    return {**fields, **times}


def _may_show(name: str, value: object) -> bool:
    """Whether a support archive may have this field of a log line."""
    # A name comes from the log as well, and may be any key of a mapping.
    if not re.fullmatch(r"[a-z][a-z_]{0,40}", name):
        return False
    if isinstance(value, bool | int | float):
        return True
    pattern = _TEXTS.get(name)
    return pattern is not None and isinstance(value, str) and pattern.fullmatch(value) is not None


def metrics(text: str) -> Iterator[str]:
    """Yield the lines of the metrics of a realm whose labels are allowed."""
    for line in text.split("\n"):
        if _TYPE.fullmatch(line):
            yield line
        elif (match := _SAMPLE.fullmatch(line)) is not None:
            labels = _LABEL.findall(match["labels"] or "")
            joined = ",".join(f'{name}="{value}"' for name, value in labels)
            is_whole = joined == (match["labels"] or "").rstrip(",")
            if is_whole and all(name in _LABELS for name, _ in labels):
                yield line
