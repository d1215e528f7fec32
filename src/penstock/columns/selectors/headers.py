"""Names a selector can use that are not properties, and the columns behind them (SEM F1)."""

from __future__ import annotations

from typing import Final

from penstock.columns.selectors.expressions import Step

HEADERS: Final = {
    "event_id": "event_id",
    "tag": "tag",
    "published": "published",
    "JMSMessageID": "headers.message_id",
    "JMSCorrelationID": "headers.correlation_id",
    "JMSType": "headers.type",
    "JMSPriority": "priority",
    "JMSTimestamp": "published",
    "JMSDeliveryMode": "headers.delivery_mode",
}
"""The column each name reads. They hide properties of the same name."""


def column_path(steps: tuple[Step, ...]) -> str:
    """The stored column a reference reads, in dots, down to the first array."""
    if steps[0] in HEADERS:
        return HEADERS[str(steps[0])]
    names = ["properties"]
    for step in steps:
        if not isinstance(step, str):
            break
        names.append(step)
    return ".".join(names)
