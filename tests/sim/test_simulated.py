"""A test on virtual time is called like any other, and its failures show its own lines."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from penstock_testing.loop import Deadlock, SimLoop, pass_time, simulated


@pytest.fixture
def greeting() -> str:
    return "hello"


@pytest.mark.parametrize("name", ["ann", "bob"])
@simulated
async def test_fixtures_and_parameters_reach_the_coroutine(name: str, greeting: str) -> None:
    await pass_time(3_600)

    assert asyncio.get_running_loop().time() == 3_600
    assert f"{greeting} {name}" in ("hello ann", "hello bob")


async def _order_of_tasks() -> list[int]:
    """Return the order in which ten tasks run."""
    order: list[int] = []

    async def run(number: int) -> None:
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(run(number))
    return order


@simulated
async def seeded(seed: int = 7) -> list[int]:
    return await _order_of_tasks()


@simulated
async def unseeded() -> list[int]:
    assert isinstance(asyncio.get_running_loop(), SimLoop)
    return await _order_of_tasks()


@pytest.mark.slow
def test_a_parameter_called_seed_seeds_the_loop() -> None:
    assert seeded(1) == seeded(seed=1) == unseeded()
    assert len({tuple(seeded(seed)) for seed in range(5)}) == 5


@simulated
async def failing() -> None:
    await pass_time(1.0)
    raise ValueError("of the story")


def test_a_failure_shows_the_line_of_the_coroutine() -> None:
    with pytest.raises(ValueError, match="of the story") as raised:
        failing()

    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.name, last.line) == ("failing", 'raise ValueError("of the story")')


@pytest.mark.slow
def test_the_report_of_a_failure_begins_in_the_coroutine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from penstock_testing.loop import simulated

        @pytest.mark.parametrize("number", [1, 2])
        @simulated
        async def test_it(number, tmp_path):
            assert tmp_path.exists()
            assert number == 2, "said in the story"
        """
    )

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")

    result.assert_outcomes(passed=1, failed=1)
    report = result.stdout.str()
    assert "said in the story" in report
    assert "def test_it(number, tmp_path):" in report
    assert "loop.py" not in report


def test_a_coroutine_that_never_ends_fails() -> None:
    @simulated
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        waits()
