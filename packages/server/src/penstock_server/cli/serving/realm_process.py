"""Runs the process of a realm: loads its settings, configures its log and logs why it failed.

To start fast, it imports only modules that a server needs, not the command line parser.
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
    """Run a realm until a signal stops it and return the exit status, 0 or :data:`FAILED`.

    The log has the reason of a failure.
    """
    # mimalloc, Arrow's default, keeps freed memory: 100 MB more after a recovery that read 266 MB
    # of journal. Arrow's builds for other C libraries have no jemalloc.
    if sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION"):
        os.environ.setdefault(ALLOCATOR, "jemalloc")
    try:
        _serve(data.expanduser(), settings, flags)
    except Exception as error:  # noqa: BLE001  every failure goes to the log, not to a traceback
        log_failure(error)
        return FAILED
    return 0


def _serve(data: Path, settings_file: Path | None, flags: dict[str, Any]) -> None:
    # Garbage collection is off during the imports, because the objects that they make live as long
    # as the process: collecting took a tenth of the start.
    with uncollected():
        settings = _settings(settings_file, flags)
        # These imports load Arrow and the server, so they follow the check of the flags.
        from penstock_server.serving import leave_pandas_out, serve
        from penstock_server.serving.lifecycle import collect_rarely

        leave_pandas_out()
        if settings.http.enabled and settings.cluster.engine:
            # A node loads HTTP before it can become the owner, so that a failover does not wait.
            import penstock_server.frontends.http.server  # noqa: F401
        collect_rarely()
    serve(data, settings)


def _settings(settings_file: Path | None, flags: dict[str, Any]) -> Settings:
    """Return the settings in force after the log is configured by them. Raises
    ``InvalidArgument``."""
    # structlog would import these packages for coloured tracebacks, which are not used. Loading
    # them takes longer than loading the log.
    with left_out("rich", "better_exceptions", "colorama", "greenlet"):
        from penstock_server import logs

    try:
        settings = chosen_for_server(settings_file, flags)
    except PenstockError:
        logs.configure("info", log_format(flags))
        raise
    logs.configure(settings.log.level, settings.log.format)
    return settings


def log_format(flags: dict[str, Any]) -> Format:
    """Return the log format to use if the settings as a whole are invalid."""
    from penstock_server.logs import Format

    style = flags["log.format"] or os.environ.get("PENSTOCK_LOG_FORMAT", "auto")
    return cast("Format", style if style in get_args(Format) else "auto")


def log_failure(error: Exception) -> None:
    """Log why a realm ended or did not start."""
    import structlog

    _log = structlog.get_logger("penstock.realm")
    if isinstance(error, PenstockError):
        _log.error("realm.failed", code=error.code, reason=str(error))
    else:
        reason = "an internal error of the realm; please report it"
        _log.error("realm.failed", code=Internal.code, reason=reason, exc_info=error)
