"""Simulated lives of a realm happen as they were recorded: the same seed, the same trace.

``traces.txt`` has the hash of the trace of each of the first seeds, and
``tests/sim/test_power_cuts.py`` compares each life with it. A change of the code's structure leaves
them as they are. A change of behaviour that moves events says so in its commit, and records them
anew: ``python -m tests.golden.test_traces``.
"""

from __future__ import annotations

from typing import Final

from tests.golden.traces import GOLDEN, recorded

SEEDS: Final = 200


def test_the_first_seeds_are_recorded() -> None:
    traces = recorded()

    assert list(traces) == list(range(SEEDS))
    assert len(set(traces.values())) == SEEDS, "every seed tells a story of its own"


if __name__ == "__main__":
    import structlog

    from tests.sim.world import life_of

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    GOLDEN.write_text("".join(f"{seed} {life_of(seed)}\n" for seed in range(SEEDS)), "ascii")
