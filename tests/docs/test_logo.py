"""The documentation and the console have the same logo."""

from __future__ import annotations

from penstock_server.frontends.http.console import ROOT as CONSOLE
from tests.docs.pages import ROOT


def test_the_documentation_has_the_icon_of_the_console() -> None:
    logo = ROOT / "docs" / "assets" / "logo.svg"

    assert logo.read_bytes() == (CONSOLE / "icon.svg").read_bytes()
