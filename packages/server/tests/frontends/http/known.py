"""An HTTP client that signs in as a user of the realm."""

from __future__ import annotations

import base64
from typing import Any

from packages.server.tests.frontends.http.asking import Reply, Web

ANN = "secret of ann"
"""Password of the user ``ann``."""


class Known(Web):
    """Sends requests as a user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        super().__init__(url)
        secret = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.own_headers = {"authorization": f"Basic {secret}"}

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        headers = {**self.own_headers, **(more.pop("headers", None) or {})}
        return super().ask(method, path, body, headers=headers, **more)
