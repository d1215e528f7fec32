"""The message types of a channel: lookup by name, and conversion from and to JSON (SEM P).

A channel's descriptors are a serialized ``FileDescriptorSet``. Messages are dictionaries in the
JSON mapping of Protocol Buffers: 64-bit integers and bytes are strings, and names of fields may
also be in camel case.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock_core.vocabulary.errors import InvalidDescriptor, InvalidEvent, Unavailable
from penstock_core.vocabulary.nesting import NESTING_MAX
from penstock_core.vocabulary.text_cache import TextCache

DESCRIPTORS_BYTES_MAX: Final = 960 << 10
"""Largest size of a channel's descriptors in bytes. The limit exists because they are part of its
description."""
DESCRIPTORS_KEPT_BYTES_MAX: Final = 4 << 20
"""Bytes of descriptors whose parsed form a process keeps; others are parsed again for each use."""
FIELDS_MAX: Final = 10_000
"""Maximum number of fields of a message, including the fields of nested messages.

Each field becomes a column, and a few types that contain each other twice would have millions.
"""

COLUMN_LEVELS_MAX: Final = 30
"""Maximum number of levels of nested messages that are read as columns. Arrow supports 64 levels,
and a repeated message takes two."""


class Descriptors:
    """The message types of a serialized ``FileDescriptorSet``.

    Raises :class:`InvalidDescriptor` with the parser's message (SEM P4), :class:`Unavailable` if
    Protocol Buffers are not installed.
    """

    def __init__(self, serialized: bytes) -> None:
        require_protobuf()
        from google.protobuf import descriptor_pb2, descriptor_pool, message

        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(serialized)
        except message.DecodeError as error:
            raise InvalidDescriptor(
                f"these {len(serialized):,} bytes are not a FileDescriptorSet ({error}); "
                "make one with protoc --include_imports --descriptor_set_out=FILE"
            ) from error
        # One pool per set, because channels may define a type name differently.
        self._pool = descriptor_pool.DescriptorPool()
        # The pool accepts a file only after its imports.
        for file in _in_order_of_use(files):
            try:
                self._pool.AddSerializedFile(file.SerializeToString())
            except (TypeError, ValueError) as error:
                raise InvalidDescriptor(f"descriptor file {file.name!r}: {error}") from error
        self._files = [self._pool.FindFileByName(file.name) for file in files.file]
        self.types: tuple[str, ...] = tuple(sorted(_names(self._files)))
        """Full names of all message types, including nested ones, sorted."""
        if not self.types:
            raise InvalidDescriptor("the descriptors define no message type; include at least one")
        self._type_names = frozenset(self.types)
        self._columns: Any = None
        """The pool of decoders to columns; None until the first use."""
        self._too_wide: dict[str, bool] = {}
        """Results of :meth:`is_too_wide` by type."""

    def __contains__(self, name: object) -> bool:
        return name in self._type_names

    def has_field(self, name: str, field: str) -> bool:
        """Whether the message type ``name`` is known and has this field."""
        return name in self._type_names and field in self._type(name).fields_by_name

    def is_too_wide(self, name: str) -> bool:
        """Whether a message of this type has more than `FIELDS_MAX` fields, or nested messages on
        more than `COLUMN_LEVELS_MAX` levels, so that it cannot be read as columns."""
        too_wide = self._too_wide.get(name)
        if too_wide is None:
            too_wide = self._too_wide[name] = _is_too_wide(self._type(name))
        return too_wide

    def encoded(self, name: str, value: object) -> bytes:
        """Encode ``value`` as a message of type ``name``.

        ``value`` is a dictionary in the JSON mapping, JSON text, or a message object of the type.
        Raises :class:`InvalidEvent` if the type is unknown, or the value does not match it.
        """
        from google.protobuf import json_format, message

        kind = self._message_class(name)
        try:
            if isinstance(value, message.Message):
                if value.DESCRIPTOR.full_name != name:
                    raise InvalidEvent(f"a {value.DESCRIPTOR.full_name} message is not a {name}")
                return bytes(value.SerializeToString())
            if isinstance(value, str | bytes):
                encoded_message = json_format.Parse(value, kind())
            elif isinstance(value, Mapping):
                encoded_message = json_format.ParseDict(dict(value), kind())
            else:
                raise InvalidEvent(
                    f"{type(value).__name__} is not a {name}; pass a dictionary, JSON or a message"
                )
            return bytes(encoded_message.SerializeToString())
        except (json_format.ParseError, message.EncodeError) as error:
            raise InvalidEvent(f"not a {name}: {error}") from error

    def decoded(self, name: str, data: bytes) -> dict[str, Any]:
        """Return the message in ``data`` as a dictionary in the JSON mapping, with the field names
        of the descriptor.

        Raises :class:`InvalidEvent` if the type is unknown, or the bytes do not match it.
        """
        from google.protobuf import json_format, message

        kind = self._message_class(name)
        try:
            decoded_message: dict[str, Any] = json_format.MessageToDict(
                kind.FromString(data),
                preserving_proto_field_name=True,
                descriptor_pool=self._pool,
            )
        except (message.DecodeError, json_format.SerializeToJsonError, TypeError) as error:
            raise InvalidEvent(f"the data is not a {name}: {error}") from error
        return decoded_message

    def table(self, name: str, data: pa.BinaryArray) -> pa.RecordBatch:
        """Return messages of one type as a batch: a row per message, a column per field.

        A scalar field that is not set has the default value of its type, or null if it is
        ``optional`` or in a ``oneof``. Enumerations are names, timestamps have microseconds. A
        field that contains its own message type stays binary. Raises :class:`InvalidEvent` if the
        type is unknown, or some bytes do not match it.
        """
        self._check_known(name)
        if self.is_too_wide(name):  # the decoder would recurse over the levels in native code
            raise InvalidEvent(
                f"{name} has more than {FIELDS_MAX:,} fields or {COLUMN_LEVELS_MAX} levels of "
                "messages, too many for columns; decode its messages one by one"
            )
        try:
            return self._decoder(name).array_to_record_batch(data)
        except BaseException as error:
            # The decoder panics at an impossible length, and a panic is not a subclass of
            # Exception.
            if isinstance(error, ValueError) or type(error).__name__ == "PanicException":
                raise InvalidEvent(f"some data is not a {name}: {error}") from error
            raise

    def check_depth(self) -> None:
        """Raise :class:`InvalidDescriptor` if a message type nests others on more than
        `NESTING_MAX` levels.

        Types that can contain themselves are not counted.
        """
        pending = {name: self._inside(name) for name in self.types}
        users: dict[str, list[str]] = {}
        for name, inside in pending.items():
            for inner in inside:
                users.setdefault(inner, []).append(name)
        # Remove types level by level, beginning with those that contain no messages. Recursion
        # could exceed the stack.
        level = [name for name, inside in pending.items() if not inside]
        depth = 1
        while level:
            if depth > NESTING_MAX:
                raise InvalidDescriptor(
                    f"message type {level[0]!r} has nested messages on more than "
                    f"{NESTING_MAX} levels; remove some of the levels"
                )
            next_level = []
            for inner in level:
                for name in users.get(inner, ()):
                    pending[name].discard(inner)
                    if not pending[name]:
                        next_level.append(name)
            level, depth = next_level, depth + 1

    def _inside(self, name: str) -> set[str]:
        """Return the message types of the fields of a type. A map counts as the type of its
        values."""
        inside = {field.message_type for field in self._type(name).fields} - {None}
        maps = {kind for kind in inside if kind.GetOptions().map_entry}
        values = {field.message_type for kind in maps for field in kind.fields} - {None}
        return {kind.full_name for kind in (inside - maps) | values}

    def _decoder(self, name: str) -> Any:
        """Return the decoder of a message type to columns; the pool is created on first use."""
        import ptars

        if self._columns is None:
            config = ptars.PtarsConfig(
                enum_repr="string", timestamp_unit="us", duration_unit="us", time_unit="us"
            )
            self._columns = ptars.HandlerPool(self._files, config=config)
        return self._columns.get_for_message(self._type(name))

    def _type(self, name: str) -> Any:
        return self._pool.FindMessageTypeByName(name)

    def _message_class(self, name: str) -> Any:
        """Return the message class of a type. Raises :class:`InvalidEvent`."""
        from google.protobuf import message_factory

        self._check_known(name)
        try:
            return message_factory.GetMessageClass(self._type(name))
        # GetMessageClass() builds the classes of all nested types by recursion.
        except RecursionError:
            raise InvalidEvent(f"{name} has messages nested too deep to be decoded") from None

    def _check_known(self, name: str) -> None:
        if name not in self._type_names:
            shown = ", ".join(self.types[:10]) + (", ..." if len(self.types) > 10 else "")
            raise InvalidEvent(f"unknown message type {name!r}; the descriptors have {shown}")


descriptors_of: Final = TextCache(Descriptors, DESCRIPTORS_KEPT_BYTES_MAX)
"""Returns the message types of a channel's descriptors. Results are cached."""


def checked_descriptors(serialized: bytes) -> None:
    """Check new descriptors of a channel (SEM P4). Empty bytes mean that the channel has no
    descriptors, and are valid.

    Raises :class:`InvalidDescriptor` or :class:`Unavailable`.
    """
    check_size(serialized)
    if serialized:
        descriptors_of(serialized).check_depth()


def check_size(serialized: bytes) -> None:
    """Check the size of descriptors, in clients and in the realm.

    Raises :class:`InvalidDescriptor` above :data:`DESCRIPTORS_BYTES_MAX`.
    """
    if len(serialized) > DESCRIPTORS_BYTES_MAX:
        raise InvalidDescriptor(
            f"the descriptors have {len(serialized):,} bytes; a channel accepts at most "
            f"{DESCRIPTORS_BYTES_MAX:,}: leave out files that its messages do not use"
        )


def require_protobuf() -> None:
    """Raise :class:`Unavailable` if the packages that read messages are not installed."""
    missing = [
        package
        for package, module in (("protobuf", "google.protobuf"), ("ptars", "ptars"))
        if not _is_installed(module)
    ]
    if missing:
        raise Unavailable(
            f"descriptors need {' and '.join(missing)}, which is not installed: "
            'pip install "penstock-realm[protobuf]"'
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # also raised if the parent package is missing
        return False


def _in_order_of_use(files: Any) -> list[Any]:
    """Return the files so that each follows its imports, with well-known files added.

    Raises :class:`InvalidDescriptor` for a missing or circular import.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool

    files_by_name = {file.name: file for file in files.file}
    ordered: dict[str, Any] = {}
    importing: list[str] = []

    def add(name: str) -> None:
        if name in ordered:
            return
        if len(importing) > NESTING_MAX:
            raise InvalidDescriptor(
                f"{importing[0]} imports files that import others on more than {NESTING_MAX} "
                "levels; put them into fewer files"
            )
        if name in importing:
            raise InvalidDescriptor(f"the imports form a circle: {' -> '.join([*importing, name])}")
        file = files_by_name.get(name)
        if file is None:
            file = descriptor_pb2.FileDescriptorProto()
            try:
                well_known = descriptor_pool.Default().FindFileByName(name)
            except KeyError:
                raise InvalidDescriptor(
                    f"{importing[-1]} imports {name}, but the set does not contain it; "
                    "give protoc --include_imports"
                ) from None
            well_known.CopyToProto(file)
        importing.append(name)
        for imported in file.dependency:
            add(imported)
        importing.pop()
        ordered[name] = file

    for name in files_by_name:
        add(name)
    return list(ordered.values())


def _is_too_wide(kind: Any) -> bool:
    """Whether a message type has too many fields or nested levels for columns."""
    remaining = FIELDS_MAX
    pending: list[tuple[Any, tuple[str, ...]]] = [(kind, (kind.full_name,))]
    while pending:
        message, enclosing = pending.pop()
        remaining -= len(message.fields)
        if remaining < 0 or len(enclosing) > COLUMN_LEVELS_MAX:
            return True
        for field in message.fields:
            nested = field.message_type
            # A field that contains its own message type stays binary, so it ends here.
            if nested is not None and nested.full_name not in enclosing:
                pending.append((nested, (*enclosing, nested.full_name)))
    return False


def sole_type(serialized: bytes) -> str:
    """Return the only top-level message type of the last file in the descriptors; empty if it has
    several or none.

    ``protoc`` writes the file named in its arguments after the files it imports.
    """
    if not serialized:
        return ""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(serialized).file
    names = [message_type.name for message_type in files[-1].message_type] if files else []
    if len(names) != 1:
        return ""
    return f"{files[-1].package}.{names[0]}".removeprefix(".")


def _names(files: list[Any]) -> list[str]:
    """Return the full names of all message types, except the entry types of maps."""
    names: list[str] = []
    pending = [kind for file in files for kind in file.message_types_by_name.values()]
    while pending:
        kind = pending.pop()
        if not kind.GetOptions().map_entry:
            names.append(kind.full_name)
            pending.extend(kind.nested_types)
    return names
