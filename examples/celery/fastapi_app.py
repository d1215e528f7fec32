"""A FastAPI application that starts tasks and returns their results::

uvicorn examples.celery.fastapi_app:app
"""

from __future__ import annotations

from typing import Any

from celery.result import AsyncResult
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from examples.celery import shop

app = FastAPI()


# Plain functions: FastAPI runs them in threads, where the blocking calls of Celery belong.
@app.post("/orders", status_code=202)
def order(quantity: int, unit_price: float) -> dict[str, str]:
    """Start the task, and return its id."""
    return {"order": shop.price.delay(quantity, unit_price).id}


@app.get("/orders/{order_id}")
def order_state(order_id: str, wait_s: float = 0.0) -> Any:
    """Return the price of an order, waiting at most ``wait_s`` seconds for it."""
    result: Any = AsyncResult(order_id, app=shop.app)
    try:
        return {"price": result.get(timeout=min(wait_s, 30.0))}
    except shop.app.backend.TimeoutError:
        return JSONResponse({"state": result.state}, status_code=202)
