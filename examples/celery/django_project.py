"""A Django project in one file, whose views start tasks and return their results::

python -m examples.celery.django_project runserver
"""

from __future__ import annotations

import sys
from typing import Any

from celery.result import AsyncResult
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from examples.celery import shop

settings.configure(
    SECRET_KEY="only for this example",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost", "testserver"],
)


def order(request: HttpRequest) -> JsonResponse:
    """Start the task, and return its id."""
    quantity, unit_price = request.GET["quantity"], request.GET["unit_price"]
    # Within a transaction of the database: transaction.on_commit(lambda: shop.price.delay(...)).
    task = shop.price.delay(int(quantity), float(unit_price))
    return JsonResponse({"order": task.id}, status=202)


def order_state(request: HttpRequest, order_id: str) -> JsonResponse:
    """Return the price of an order, waiting at most ``wait_s`` seconds for it."""
    result: Any = AsyncResult(order_id, app=shop.app)
    try:
        wait_s = min(float(request.GET.get("wait_s", 0)), 30.0)
        return JsonResponse({"price": result.get(timeout=wait_s)})
    except shop.app.backend.TimeoutError:
        return JsonResponse({"state": result.state}, status=202)


urlpatterns = [path("orders", order), path("orders/<str:order_id>", order_state)]
application = get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
