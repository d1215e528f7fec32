"""The command group ``penstock cluster``: try, inspect and control a cluster, and move realms."""

from __future__ import annotations

import typer

from penstock_cluster.cli import (
    cluster_looks,
    cluster_moves,
    cluster_node,
    cluster_orders,
)
from penstock_server.cli.shared.grouping import command_group, register_below

commands = command_group(
    "Try a cluster on this machine; inspect and control a running cluster; move realms into or "
    "out of a cluster."
)


def register(app: typer.Typer) -> None:
    register_below("cluster", commands)
    cluster_looks.register(commands)
    cluster_moves.register(commands)
    cluster_node.register(commands)
    cluster_orders.register(commands)
    app.add_typer(commands, name="cluster")
