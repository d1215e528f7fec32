"""The plugin as its users have it: pytest finds it by its entry point, and runs their file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock import aio
from penstock_testing.virtual_realm import VirtualRealm
from tests.loops import on_a_loop

pytestmark = pytest.mark.slow

PLUGIN = "penstock_testing.pytest_plugin"
HEAVY = ("numpy", "pyarrow", "msgspec", "asyncio", "penstock.client", "penstock_server.bootstrap")


@on_a_loop
async def connect_from_a_loop() -> None:
    async with aio.Realm() as realm, realm.connect() as session:
        await (await session.queues.create("jobs")).pop(timeout=0)


@pytest.fixture(scope="module", autouse=True)
def _all_is_loaded() -> None:
    """A run of pytest in this process forgets the modules that were imported in it, and NumPy
    cannot be imported twice."""
    connect_from_a_loop()
    with VirtualRealm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish(b"1")
        list(orders.browse())


EACH_FIXTURE = """
import asyncio
from datetime import timedelta

import penstock


def test_each_test_has_a_realm_of_its_own(penstock_realm):
    with penstock_realm.connect() as session:
        session.channels.create("orders")


def test_a_blocking_session(penstock_session):
    orders = penstock_session.channels.create("orders")
    orders.publish(b"1")
    assert [event.data for event in orders.browse()] == [b"1"]


def test_asyncio(penstock_session, penstock_aio_realm):
    penstock_session.queues.create("jobs").push(b"job")

    async def story():
        async with penstock_aio_realm.connect() as session:
            jobs = await session.queues.get("jobs")
            return (await jobs.pop(timeout=5)).data

    assert asyncio.run(story()) == b"job"


def test_virtual_time(penstock_virtual_realm):
    begun = penstock_virtual_realm.now
    with penstock_virtual_realm.connect() as session:
        orders = session.channels.create("orders", ttl=86_400_000)
        orders.publish(b"1")
        penstock_virtual_realm.advance(hours=24)
        assert list(orders.browse()) == []
    assert penstock_virtual_realm.now - begun == timedelta(hours=24)
"""


def test_each_fixture_works_without_any_other_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(EACH_FIXTURE)

    pytester.runpytest_inprocess("-W", "error").assert_outcomes(passed=4)


def test_a_failing_assertion_is_reported_where_it_stands(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(penstock_virtual_realm):
            with penstock_virtual_realm.connect() as session:
                orders = session.channels.create("orders", ttl=3_600_000)
                orders.publish(b"1")
                penstock_virtual_realm.advance(minutes=59)
                assert list(orders.browse()) == [], "it expires after an hour"


        def test_story(penstock_virtual_realm):
            async def story():
                async with penstock_virtual_realm.aio_connect() as session:
                    await session.channels.create("orders")
                    assert await session.channels.names() == ["bills"]

            penstock_virtual_realm.run(story)
        """
    )

    result = pytester.runpytest_inprocess()

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            '>           assert list(orders.browse()) == [], "it expires after an hour"',
            "E           AssertionError: it expires after an hour",
            "test_a_failing*.py:6: AssertionError",
            "test_a_failing*.py:15: ",
            "*assert await session.channels.*",
        ]
    )
    assert "virtual_loop.py" not in f"{result.stdout}"


def test_a_session_that_a_test_leaves_open_is_a_warning(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(penstock_realm, penstock_virtual_realm):
            penstock_realm.connect()
            penstock_realm.connect()
            penstock_virtual_realm.connect()
        """
    )

    result = pytester.runpytest_inprocess("-W", "default")

    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "*SessionLeftOpen: *::test_it left 1 session of its realm open; close every *",
            "*SessionLeftOpen: *::test_it left 2 sessions of its realm open; close every *",
        ]
    )


def test_a_fixture_of_the_user_changes_the_settings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import penstock


        @pytest.fixture
        def penstock_settings():
            return {"limits__max_event_bytes": 2_000}


        @pytest.mark.parametrize("name", ["penstock_realm", "penstock_virtual_realm"])
        def test_it(name, request):
            with request.getfixturevalue(name).connect() as session:
                assert session.event_bytes_max == 2_000
        """
    )

    pytester.runpytest_inprocess("-W", "error").assert_outcomes(passed=2)


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--fixtures")

    for name in ("aio_realm", "realm", "session", "settings", "virtual_realm"):
        result.stdout.fnmatch_lines([f"penstock_{name} -- *pytest_plugin.py*"])
    assert "no docstring available" not in f"{result.stdout}".partition("penstock_")[2][:1_500]


@pytest.mark.process
def test_the_plugin_costs_nothing_until_a_test_uses_it() -> None:
    """Each run of pytest in an environment with Penstock imports it."""
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        f"import {PLUGIN}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    imported = done.stdout.split()
    assert set(imported) == {
        "penstock",
        "penstock_core",
        "penstock_core.version",
        "penstock_testing",
        PLUGIN,
    }
    assert not [name for name in imported if name.startswith(HEAVY)]
