"""One simulated life: ``python -m tests.sim SEED``; several: ``python -m tests.sim FIRST END``.

On a disk that rots afterwards: ``python -m tests.sim rot SEED`` and ``... rot FIRST END``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.sim.rot import rot_of
from tests.sim.world import life_of


def main(arguments: list[str]) -> int:
    rots = arguments[0] == "rot"
    first, *rest = map(int, arguments[rots:])
    for seed in range(first, rest[0] if rest else first + 1):
        try:
            told = _rot(seed) if rots else life_of(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        sys.stderr.write(f"{seed} {told}\n")
    return 0


def _rot(seed: int) -> str:
    with TemporaryDirectory() as directory:
        return rot_of(seed, Path(directory))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
