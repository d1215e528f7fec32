"""Protocol Buffers: the message types of a channel, and message fields as columns (SEM P).

A channel holds *descriptors*, a serialized ``FileDescriptorSet``; an event names the type of the
message in its data with the header ``message_type``. Needs the extra ``protobuf``.
"""

from penstock_core.columns.protobuf.descriptors import (
    Descriptors,
    checked_descriptors,
    descriptors_of,
    sole_type,
)
from penstock_core.columns.protobuf.fields import TYPE_HEADER, MessageFields, fields_of
from penstock_core.columns.protobuf.messages import Messages, descriptor_set

__all__ = [
    "TYPE_HEADER",
    "Descriptors",
    "MessageFields",
    "Messages",
    "checked_descriptors",
    "descriptor_set",
    "descriptors_of",
    "fields_of",
    "sole_type",
]
