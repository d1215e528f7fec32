"""Penstock as a broker of Celery and kombu. Importing this package registers the URL schemes
``penstock://`` and ``penstocks://`` at kombu::

    import penstock_celery
    app = Celery("shop", broker="penstock://localhost:9000")
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

SCHEMES: Final = {
    "penstock": "penstock_celery.transport:Transport",
    "penstocks": "penstock_celery.transport:SecureTransport",
}
"""Schemes of URLs, each with the transport that kombu loads for it."""

TRANSPORT_ALIASES.update(SCHEMES)
