"""``penstock serve``, which runs a realm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_server.cli.serving.realm_process import run_realm
from penstock_server.cli.shared.configuring import server_flags
from penstock_server.cli.shared.server_flags import CLUSTER, LOG, PORTS, flags_of


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


@server_flags("host", *PORTS, *CLUSTER, "settings", *LOG)
def serve(
    data: Annotated[
        Path,
        typer.Option("--data", help="Data directory; created if it is missing.", metavar="DIR"),
    ],
    **written: Any,
) -> None:
    """Run a realm until SIGTERM or Ctrl-C.

    Each option can also be set in the settings file and by an environment variable; see `penstock
    settings`. A flag overrides the environment, and the environment overrides the file. The log
    is written to standard error: `realm.listening` means that clients can connect, and
    `realm.failed` has the reason why the realm did not start or stopped.

    With `--cluster` this process is one of several nodes that share a storage engine. One node
    serves; the others stand by, redirect clients to it and take over if it fails. The storage
    engine has the events. Each node needs its own data directory, for its name and its audit logs.
    With `--local-port` the node also has local channels, which work without the cluster.

    \b
    Example:
      penstock serve --data ./data --port 9001
      penstock serve --data ./n1 --cluster nats://a,b,c --host 10.0.0.1
      penstock serve --data ./n1 --cluster nats://a,b,c --local-port 9001
    """
    status = run_realm(data, written["settings"], flags_of(written))
    if status:
        raise typer.Exit(status)
