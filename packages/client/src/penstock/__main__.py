"""``python -m penstock``: the command line, which is part of the server's package."""

from __future__ import annotations

from penstock.missing_packages import from_package

if __name__ == "__main__":
    with from_package("penstock_server"):
        from penstock_server.cli import main
    main()
