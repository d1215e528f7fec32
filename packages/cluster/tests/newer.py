"""``python -m packages.cluster.tests.newer``: penstock as a version that knows one more format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from penstock_cluster.owning.register_records import MemberRecord
from penstock_cluster.serving import cluster
from penstock_core.vocabulary.formats import FORMAT
from penstock_server.cli.program import main

NEWER = FORMAT + 1


def newer(made: Callable[..., MemberRecord]) -> Callable[..., MemberRecord]:
    def member(*arguments: Any, **fields: Any) -> MemberRecord:
        return replace(made(*arguments, **fields), format=NEWER)

    return member


if __name__ == "__main__":
    vars(cluster)["member"] = newer(vars(cluster)["member"])
    main()
