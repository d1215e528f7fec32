"""The process of a realm: its settings, its log, and what it says when it cannot go on.

It loads neither the command line's parser nor anything else that a server has no use for: whoever
starts a realm waits for that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from penstock_core.garbage import uncollected
from penstock_core.imports import left_out
from penstock_core.vocabulary.errors import Internal, PenstockError
from penstock_server.cli.shared.choosing import chosen_for_server

if TYPE_CHECKING:
    from penstock_server.logs import Format
    from penstock_server.settings import Settings

ALLOCATOR: Final = "ARROW_DEFAULT_MEMORY_POOL"
"""Environment variable with the allocator that Arrow uses in the process."""
FAILED: Final = 1
"""Exit status of a realm that could not start or continue."""


def run_realm(data: Path, settings: Path | None, flags: dict[str, Any]) -> int:
    """Run a realm until it is asked to end; its exit status, 0 or :data:`FAILED`. Why it failed is
    in the log."""
    # Arrow's own choice, mimalloc, keeps what was freed: 100 MB more after a recovery that had
    # read 266 MB of journal. Builds for other C libraries have no jemalloc.
    if sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION"):
        os.environ.setdefault(ALLOCATOR, "jemalloc")
    try:
        _serve(data.expanduser(), settings, flags)
    except Exception as error:  # noqa: BLE001  whatever ends a realm is said where the rest is said
        log_failure(error)
        return FAILED
    return 0


def _serve(data: Path, file: Path | None, flags: dict[str, Any]) -> None:
    # Its tracebacks of many colours are not ours; what they need takes longer to load than the log.
    with left_out("rich", "better_exceptions", "colorama", "greenlet"):
        from penstock_server import logs

    try:
        wanted = chosen_for_server(file, flags)
    except PenstockError:
        logs.configure("info", format_wanted(flags))
        raise
    logs.configure(wanted.log.level, wanted.log.format)
    _run(data, wanted)


def _run(data: Path, wanted: Settings) -> None:
    # Imports Arrow and the server, so only when the flags are right. Nothing of what is loaded goes
    # away again: to look for what does took a tenth of the start.
    with uncollected():
        from penstock_server.serving import leave_pandas_out, serve
        from penstock_server.serving.lifecycle import collect_rarely

        leave_pandas_out()
        if wanted.http.enabled:
            import penstock_server.frontends.http.server  # noqa: F401
        collect_rarely()
    serve(data, wanted)


def format_wanted(flags: dict[str, Any]) -> Format:
    """The log format to use when the settings as a whole are invalid."""
    from penstock_server.logs import Format

    wanted = flags["log.format"] or os.environ.get("PENSTOCK_LOG_FORMAT", "auto")
    return cast("Format", wanted if wanted in get_args(Format) else "auto")


def log_failure(error: Exception) -> None:
    """Say what has ended a realm, or has kept it from starting."""
    import structlog

    _log = structlog.get_logger("penstock.realm")
    if isinstance(error, PenstockError):
        _log.error("realm.failed", code=error.code, reason=str(error))
    else:
        reason = "an internal error of the realm; please report it"
        _log.error("realm.failed", code=Internal.code, reason=reason, exc_info=error)
