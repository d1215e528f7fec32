"""The examples of Celery: both web applications with a real worker and a realm."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker

import penstock

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shop() -> Iterator[ModuleType]:
    """The tasks, at a realm in memory that has one worker."""
    with penstock.Realm() as realm, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_URL", realm.listen())
        module = importlib.import_module("examples.celery.shop")
        with start_worker(module.app, pool="solo", perform_ping_check=False):
            yield module
        module.app.close()


def test_fastapi_starts_a_task_and_returns_its_result(shop: ModuleType) -> None:
    application: Any = importlib.import_module("examples.celery.fastapi_app")
    order_id = application.order(12, 2.5)["order"]

    assert application.order_state(order_id, wait_s=30) == {"price": 27.0}
    assert application.order_state("unknown").status_code == 202
    assert {"/orders", "/orders/{order_id}"} <= application.app.openapi()["paths"].keys()


def test_django_starts_a_task_and_returns_its_result(shop: ModuleType) -> None:
    importlib.import_module("examples.celery.django_project")
    client = importlib.import_module("django.test").Client()
    order = client.get("/orders", {"quantity": 4, "unit_price": 2.5})
    state = client.get(f"/orders/{order.json()['order']}", {"wait_s": 30})
    unknown = client.get("/orders/unknown")

    assert (order.status_code, state.status_code, unknown.status_code) == (202, 200, 202)
    assert state.json() == {"price": 10.0}
