"""The tasks of a small shop, with a realm as broker and result backend.

Run a worker with ``celery -A examples.celery.shop worker``. The environment variable
``PENSTOCK_URL`` has the URL of the realm.
"""

from __future__ import annotations

import os

from celery import Celery

import penstock_celery

URL = os.environ.get("PENSTOCK_URL", "penstock://localhost:9000")

assert "penstock" in penstock_celery.SCHEMES, "the import has not registered the transport"

app = Celery("shop", broker=URL, backend=URL)
# The tasks of a killed worker run again on another one.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


@app.task
def price(quantity: int, unit_price: float) -> float:
    """Return the price of an order, with a discount of a tenth from ten pieces on."""
    total = quantity * unit_price
    return round(total * 0.9 if quantity >= 10 else total, 2)
