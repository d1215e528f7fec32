"""``python -m penstock_server``, which runs the command line."""

from __future__ import annotations

from penstock_server.cli import main

if __name__ == "__main__":
    main()
