"""``python -m tests.cluster.newer``: penstock as it would be with one more format that it knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from penstock.cli.program import main
from penstock.core.owning.register_records import MemberRecord
from penstock.core.vocabulary.formats import FORMAT
from penstock.serving import cluster

NEWER = FORMAT + 1


def newer(made: Callable[..., MemberRecord]) -> Callable[..., MemberRecord]:
    def member(*given: Any, **named: Any) -> MemberRecord:
        return replace(made(*given, **named), format=NEWER)

    return member


if __name__ == "__main__":
    vars(cluster)["member"] = newer(vars(cluster)["member"])
    main()
