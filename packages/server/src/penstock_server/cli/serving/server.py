"""``penstock serve``: runs a realm."""

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
        typer.Option("--data", help="Data directory; made when it is missing.", metavar="DIR"),
    ],
    **written: Any,
) -> None:
    """Run a realm, until SIGTERM or Ctrl-C.

    Every option has a place in the settings file and an environment variable; see
    `penstock settings`. Flags win over the environment, the environment over the file.
    The log goes to standard error; the line `realm.listening` says that clients may come, and
    `realm.failed` why there is no realm.

    With `--cluster` this is one of several nodes that share a storage engine: one of them serves,
    the others stand by, send clients to it, and take over when it is gone. The data directory then
    has the node's name, its audit logs and no events of the cluster, and each node has its own.
    With `--local-port` it has channels of this node alone, too, which go on without the cluster.

    \b
    Example:
      penstock serve --data ./data --port 9001
      penstock serve --data ./n1 --cluster nats://a,b,c --host 10.0.0.1
      penstock serve --data ./n1 --cluster nats://a,b,c --local-port 9001
    """
    status = run_realm(data, written["settings"], flags_of(written))
    if status:
        raise typer.Exit(status)
