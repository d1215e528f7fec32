"""Silence the logs: a simulated disk fails all the time, and the tests check the errors
themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    was_set_up = structlog.is_configured()
    wrapper_class = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    yield
    structlog.configure(wrapper_class=wrapper_class)
    if not was_set_up:
        structlog.reset_defaults()
