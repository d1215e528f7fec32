"""Names in selectors that are not properties, and the columns they read (SEM F1)."""

from __future__ import annotations

from typing import Final

from penstock_core.columns.selectors.expressions import Step

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
"""The column that each name reads. The names take precedence over properties of the same name."""


def column_path(steps: tuple[Step, ...]) -> str:
    """Return the dotted path of the stored column that a reference reads, down to the first
    array."""
    if steps[0] in HEADERS:
        return HEADERS[str(steps[0])]
    names = ["properties"]
    for step in steps:
        if not isinstance(step, str):
            break
        names.append(step)
    return ".".join(names)
