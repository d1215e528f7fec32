"""Names in the realm of the queues, priorities and exchanges of kombu.

Each character of a kombu name that is not an ASCII letter, a digit or one of ``-_.~@+=,`` is
written as ``%`` and two hexadecimal digits for each byte of its UTF-8, so that no two queues share
a name and a ``/`` only separates the parts that this module adds.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from penstock_core.vocabulary.temporary import is_temporary

_KEPT = "@+=,"
"""Characters of host names of workers that are kept, in addition to those that ``quote`` keeps."""
_PRIORITY = re.compile(r"/priority-[1-9]$")


class Names:
    """The names of one virtual host: all of them begin with its name, unless it is empty."""

    def __init__(self, virtual_host: str = "") -> None:
        name = virtual_host.strip("/")
        self._prefix = f"{_escaped(name)}/" if name else ""

    def queue(self, queue: str, priority: int = 0) -> str:
        """Return the name of the realm's queue for the messages of a kombu queue that have this
        priority."""
        suffix = f"/priority-{priority}" if priority else ""
        return f"{self._prefix}{_escaped(queue)}{suffix}"

    def kombu_queue(self, name: str) -> str:
        """Return the kombu queue for a name that :meth:`queue` returned."""
        return unquote(_PRIORITY.sub("", name.removeprefix(self._prefix)))

    def fanout(self, exchange: str) -> str:
        """Return the name of the channel of a fanout exchange."""
        return f"{self._prefix}kombu/fanout/{_escaped(exchange)}"

    @property
    def registry(self) -> str:
        """Name of the channel with the bindings of all exchanges."""
        return f"{self._prefix}kombu/registry"

    @property
    def results(self) -> str:
        """Name of the channel with the results of tasks."""
        return f"{self._prefix}celery/results"


def _escaped(name: str) -> str:
    escaped = quote(name, safe=_KEPT)
    if escaped in (".", "..") or is_temporary(escaped):  # names that the realm refuses
        return f"%{ord(escaped[0]):02X}{escaped[1:]}"
    return escaped
