"""The command line: ``penstock``. One module for each group of commands.

Modules here load fast: Arrow, the client and the server are imported by the command that needs
them, when it runs.
"""

from __future__ import annotations

from penstock.cli.program import main

__all__ = ["main"]
