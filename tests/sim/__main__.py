"""One simulated life: ``python -m tests.sim SEED``; several: ``python -m tests.sim FIRST END``."""

from __future__ import annotations

import sys

from tests.sim.world import life_of


def main(arguments: list[str]) -> int:
    first = int(arguments[0])
    end = int(arguments[1]) if len(arguments) > 1 else first + 1
    for seed in range(first, end):
        sys.stderr.write(f"{seed} {life_of(seed)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
