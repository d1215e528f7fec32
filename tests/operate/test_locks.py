"""The lock files fit together, and the one that needs a compiler is no part of the others."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = "python-qpid-proton"


def locked(name: str) -> dict[str, str]:
    """Versions by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_what_has_to_be_compiled_is_locked_apart() -> None:
    assert ENGINE not in locked("requirements.lock")
    assert ENGINE in locked("requirements-amqp.lock")


def test_the_amqp_engine_moves_no_version_of_the_large_lock() -> None:
    """It is installed after it, and whoever cannot build it has the same of everything else."""
    large = locked("requirements.lock")
    needed = locked("requirements-amqp.lock")
    del needed[ENGINE]

    assert needed
    assert needed == {name: large.get(name) for name in needed}


def test_every_locked_package_has_its_hashes() -> None:
    text = (ROOT / "requirements-amqp.lock").read_text()

    for block in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block
