"""Fixtures of the storage tests, and a hook that runs tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from penstock_testing.disk import FaultyDisk


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()
