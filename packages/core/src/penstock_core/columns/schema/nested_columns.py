"""An index of a shape for reading and writing rows: the Arrow fields of each property."""

from __future__ import annotations

from typing import Any

from penstock_core.columns.schema.layout import key_path
from penstock_core.columns.schema.shapes import ListShape, Shape, StructShape


class Column:
    """One Arrow field of a level. ``level`` is the struct inside the field, below any lists; None
    if the field has no struct."""

    __slots__ = ("level", "name", "shape")

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape
        inner = shape
        while isinstance(inner, ListShape):
            inner = inner.element
        self.level = Level(inner) if isinstance(inner, StructShape) else None


class Level:
    """One struct of a shape: its columns by logical name."""

    __slots__ = ("columns", "is_renamed")

    def __init__(self, shape: StructShape) -> None:
        self.columns: dict[str, list[Column]] = {}
        self.is_renamed = False
        for slot in shape.slots:
            column = Column(slot.name, slot.shape)
            self.columns.setdefault(slot.logical, []).append(column)
            renamed_below = column.level is not None and column.level.is_renamed
            if slot.name != slot.logical or renamed_below:
                self.is_renamed = True

    def read(
        self, fields: dict[str, Any], nulls: frozenset[str] | None, path: str = ""
    ) -> dict[str, Any]:
        """Return the dictionary that is stored as ``fields``: values by the names of Arrow fields.

        ``nulls`` has the paths of explicit nulls in a sparse row; it is None in a dense row, in
        which every null is explicit.
        """
        properties: dict[str, Any] = {}
        for logical, columns in self.columns.items():
            for column in columns:
                value = fields[column.name]
                if value is not None:
                    if column.level is not None:
                        inner = path if nulls is None else key_path(path, logical)
                        value = _read_inner(column.level, value, nulls, inner)
                    properties[logical] = value
                    break
            else:
                if nulls is None or key_path(path, logical) in nulls:
                    properties[logical] = None
        return properties


def _read_inner(level: Level, value: Any, nulls: frozenset[str] | None, path: str) -> Any:
    if isinstance(value, dict):
        return level.read(value, nulls, path)
    return [
        None if element is None else _read_inner(level, element, nulls, f"{path}[{index}]")
        for index, element in enumerate(value)
    ]
