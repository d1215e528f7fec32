"""Plain Parquet tables: a folder of files, with a list of commits that defines which files count.

::

    flights/
      published_day=2026-05-04/3f9c0a1b-000000000007-000.parquet     rows
      _penstock/commits/00000000000000000008.json                    the changes of commit 8
      _penstock/commits/00000000000000000008.state                   the table after commit 8
      _penstock/aside/...parquet                                     written, not committed yet
      _penstock/replaced/...parquet                                  replaced by a later commit

Rows are first written to the folder ``aside``. A commit is one small numbered file, created
atomically under a name that does not exist yet. Then its files are moved to their places, under
names made of the writer's name, its version and a count, and the replaced files are moved away.
After a crash during the moves, the next writer finishes them.

Readers follow the list of commits. They look for a file in its place, in ``aside`` and in
``replaced``, so that they see a commit completely from the moment it exists. Programs that only
list the folder see the files in their places, and ignore folders that begin with an underscore:
while files are being moved, they may miss rows or see them twice.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock.tables.disk import Folder, local_path
from penstock.tables.log import (
    CONTENTS_MAX,
    UNCOMMITTED_HOURS,
    Commit,
    CommitConflict,
    DataFile,
    NewFile,
    State,
)
from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.vocabulary.argument_errors import decode_json
from penstock_core.vocabulary.errors import Damaged, InvalidArgument, InvalidEvent, NewerFormat

COMMITS: Final = "_penstock/commits"
ASIDE: Final = "_penstock/aside"
REPLACED: Final = "_penstock/replaced"
"""Folders of a table: its commits, files that are not at their final paths yet, and replaced
files."""
STATE_EVERY: Final = 50
"""Number of commits after which the whole state is written, so that readers need not read all
commits."""
FORMAT_VERSION: Final = 1
"""Version of the commit and state files."""


class _Added(Struct, frozen=True):
    """A file that a commit adds."""

    file: DataFile
    aside: str
    """Name of the file in the folder ``aside``."""


class _Record(Struct, frozen=True, omit_defaults=True):
    """The content of a commit file."""

    v: int
    """Format version of the file."""
    add: tuple[_Added, ...] = ()
    remove: tuple[str, ...] = ()
    """Paths of the files that the commit removes from the table."""
    app: str = ""
    """Name of the writer; empty for maintenance."""
    version: int = 0
    """The writer's version of the commit."""
    columns: str = ""
    """The columns of the table as a Base64 Arrow schema; empty if unchanged."""
    partition_by: tuple[str, ...] | None = None
    """The partition columns; only in the first commit."""
    content: str = ""
    """Identifies the content of this version; empty if unknown."""


class _TableState(Struct, frozen=True, omit_defaults=True):
    """The content of a state file: the whole table after a commit. The fields correspond to those
    of :class:`State`."""

    v: int
    """Format version of the file."""
    columns: str
    """The columns of the table as a Base64 Arrow schema."""
    partition_by: tuple[str, ...]
    files: tuple[DataFile, ...]
    apps: dict[str, int]
    contents: dict[str, dict[int, str]] = {}


class ParquetLog:
    """The log of a plain Parquet table: the commits in one folder."""

    keeps_empty_partitions = True
    keeps_partition_columns = False

    def __init__(self, uri: str, folder: Folder | None = None) -> None:
        self.uri = uri
        self._folder = folder or Folder(local_path(uri))
        self._state = State(-1)
        self._aside: dict[str, str] = {}
        """The files of the last commit, which may not have been moved yet: names in the folder
        ``aside`` by final path."""

    @property
    def location(self) -> str:
        return self.uri

    # --- state ---------------------------------------------------------------------------

    def state(self) -> State:
        while True:
            names = self._folder.names(COMMITS)
            commits = [int(name[:20]) for name in names if name.endswith(".json")]
            if not commits or commits[-1] <= self._state.version:
                self._check_not_foreign(names)
                return self._state
            try:
                self._advance(names, commits[-1])
            except FileNotFoundError:
                # Another writer has written a newer state file and removed these commits.
                continue
            return self._state

    def _check_not_foreign(self, names: list[str]) -> None:
        """Raise ``InvalidArgument`` for a folder without commits that contains other files."""
        if names or self._state.version >= 0 or not self._folder.has("."):
            return
        others = [name for name in self._folder.names(".") if not name.startswith((".", "_penst"))]
        if others:
            raise InvalidArgument(
                f"{self.uri} is not a table of Parquet files with a list of commits: it contains "
                f"{others[0]!r} and nothing in {COMMITS}; choose an empty folder"
            )

    def _advance(self, names: list[str], newest: int) -> None:
        """Bring the state up to the commit ``newest``, from the newest state file and the commits
        after it. ``names`` are the names in the folder of commits, sorted."""
        state = self._state
        states = [int(name[:20]) for name in names if name.endswith(".state")]
        if states and states[-1] > state.version:
            state = self._stored_state(states[-1])
        for number in range(state.version + 1, newest + 1):
            state = self._state_after(state, number, self._record(number))
        self._state = state

    def _read(self, name: str, kind: Any) -> Any:
        """Return the document in the file ``name`` of the folder of commits.

        Raises ``FileNotFoundError`` if the file was removed, ``Damaged`` if it cannot be decoded,
        and ``NewerFormat`` if a newer version of Penstock wrote it.
        """
        content = self._folder.read(f"{COMMITS}/{name}")
        if content is None:
            raise FileNotFoundError(name)
        document = decode_json(
            content, kind, whole="the document", refuse=partial(self._damaged, name)
        )
        if document.v > FORMAT_VERSION:
            raise NewerFormat(
                f"{self.uri}/{COMMITS}/{name} has format {document.v} of a newer Penstock; this "
                f"version reads formats up to {FORMAT_VERSION}; update it"
            )
        return document

    def _damaged(self, name: str, reason: object) -> Damaged:
        """Return the error for a commit file that cannot be read."""
        return Damaged(f"{self.uri}/{COMMITS}/{name} cannot be read: {reason}")

    def _schema(self, name: str, text: str) -> pa.Schema:
        """Decode the schema ``text`` in the file ``name``. Raises ``Damaged``."""
        try:
            return schema_from(base64.b64decode(text, validate=True))
        except (ValueError, InvalidEvent) as error:
            raise self._damaged(name, error) from error

    def _record(self, number: int) -> _Record:
        record: _Record = self._read(f"{number:020}.json", _Record)
        return record

    def _stored_state(self, number: int) -> State:
        """Read the state file that was written after the commit ``number``."""
        name = f"{number:020}.state"
        stored: _TableState = self._read(name, _TableState)
        columns = self._schema(name, stored.columns)
        return State(
            number,
            columns,
            stored.partition_by,
            files=stored.files,
            apps=stored.apps,
            contents=stored.contents,
        )

    def _state_after(self, state: State, number: int, record: _Record) -> State:
        """Return the state after the commit ``number`` was applied to ``state``."""
        removed = frozenset(record.remove)
        files = [file for file in state.files if file.path not in removed]
        apps = {**state.apps, record.app: record.version} if record.app else state.apps
        self._aside = {added.file.path: added.aside for added in record.add}
        return State(
            number,
            self._schema(f"{number:020}.json", record.columns) if record.columns else state.schema,
            state.partition_by if record.partition_by is None else record.partition_by,
            files=(*files, *(added.file for added in record.add)),
            apps=apps,
            contents=_with_content(state.contents, record),
        )

    def last_of(self, app: str) -> int | None:
        return self._state.apps.get(app)

    def contents(self, app: str) -> Mapping[int, str]:
        return self._state.contents.get(app, {})

    def open(self, file: DataFile) -> Any:
        return pa.memory_map(str(self._folder.path / self._place(file)))

    def _place(self, file: DataFile) -> str:
        """Return the path at which a file is at present: its final path, the folder ``aside``
        before the move, or the folder ``replaced`` after a later commit.

        Raises ``FileNotFoundError`` if it is in none of them.
        """
        aside = self._aside.get(file.path)
        places = [file.path, _replaced_path(file.path)]
        if aside is not None:
            places.insert(1, f"{ASIDE}/{aside}")
        for path in places:
            if self._folder.has(path):
                return path
        raise FileNotFoundError(f"{self.uri}/{file.path}")

    def locations(self, files: Sequence[DataFile]) -> Iterator[str]:
        for file in files:
            yield str(self._folder.path / self._place(file))

    # --- commits -------------------------------------------------------------------------

    def file_maker(self) -> ParquetLog:
        return ParquetLog(self.uri)

    def new_file(self, partition: str) -> AbstractContextManager[NewFile]:
        name = f"{uuid.uuid4().hex}.parquet"
        path = f"{partition}/{name}" if partition else name
        return self._folder.new_file(f"{ASIDE}/{name}", path)

    def commit(self, based_on: State, commit: Commit) -> None:
        # Only the last commit can have unfinished moves, because each writer finishes them first.
        self._finish_moves(based_on)
        number = based_on.version + 1
        added = tuple(
            _with_final_name(commit, file, count, number=number)
            for count, file in enumerate(commit.add)
        )
        is_same_schema = based_on.schema is not None and commit.schema.equals(
            based_on.schema, check_metadata=True
        )
        record = _Record(
            FORMAT_VERSION,
            added,
            tuple(file.path for file in commit.remove),
            app=commit.app,
            version=commit.version,
            columns="" if is_same_schema else _schema_text(commit.schema),
            partition_by=commit.partition_by if number == 0 else None,
            content=commit.content,
        )
        # The entries of new files must be on disk before the commit that names them.
        if added:
            self._folder.settle(self._folder.path / ASIDE)
        if not self._publish(f"{number:020}.json", msgspec.json.encode(record)):
            raise CommitConflict
        state = self._state_after(based_on, number, record)
        self._move_files(record)
        self._state = state
        if number and number % STATE_EVERY == 0:
            self._write_state(state)

    def _publish(self, name: str, content: bytes) -> bool:
        """Create a file in the folder of commits atomically. Return False if the name exists."""
        # Written under another name first, so that readers never see a part of it.
        aside = f"{ASIDE}/{uuid.uuid4().hex}"
        file = self._folder.create(aside)
        file.write(content)
        self._folder.finish(file)
        self._folder.make(self._folder.path / COMMITS)
        published = self._folder.publish(aside, f"{COMMITS}/{name}")
        self._folder.remove(aside)
        return published

    def sync(self) -> None:
        self._folder.settle(self._folder.path / COMMITS)

    def settle(self) -> None:
        # A conflict means that another writer has finished these moves and committed since.
        with suppress(CommitConflict):
            self._finish_moves(self.state())

    def _finish_moves(self, state: State) -> None:
        """Finish the moves of the last commit, if they were interrupted.

        Raises ``CommitConflict`` if other writers have committed so often since that the commit
        file is removed.
        """
        if state.version >= 0:
            try:
                self._move_files(self._record(state.version))
            except FileNotFoundError as error:
                raise CommitConflict from error

    def _move_files(self, record: _Record) -> None:
        """Move the files of a commit to their final paths. Moves that are done already are
        skipped."""
        for path in record.remove:
            self._folder.move(path, _replaced_path(path))
        for added in record.add:
            self._folder.move(f"{ASIDE}/{added.aside}", added.file.path)

    def _write_state(self, state: State) -> None:
        """Write the whole state, and remove the commits that it includes."""
        assert state.schema is not None, "the state of a table with commits has a schema"
        document = _TableState(
            FORMAT_VERSION,
            _schema_text(state.schema),
            state.partition_by,
            files=state.files,
            apps=dict(state.apps),
            contents={app: dict(contents) for app, contents in state.contents.items()},
        )
        self._publish(f"{state.version:020}.state", msgspec.json.encode(document))
        # Readers that miss one of these commits start again from the new state.
        for name in self._folder.names(COMMITS):
            if int(name[:20]) < state.version:
                self._folder.remove(f"{COMMITS}/{name}")

    def clean(self, keep_hours: int) -> int:
        needed = set(self._aside.values())
        uncommitted = [name for name in self._folder.names(ASIDE) if name not in needed]
        hours = max(keep_hours, UNCOMMITTED_HOURS)
        old = self._paths_older_than(REPLACED, self._folder.names(REPLACED), keep_hours)
        old += self._paths_older_than(ASIDE, uncommitted, hours)
        for name in old:
            self._folder.remove(name)
        return len(old)

    def _paths_older_than(self, folder: str, names: Sequence[str], hours: int) -> list[str]:
        """Return the paths of those files in ``folder`` that are at least ``hours`` old."""
        paths = [f"{folder}/{name}" for name in names]
        return [path for path in paths if self._folder.age_s(path) >= hours * 3_600]


def _with_final_name(commit: Commit, file: DataFile, count: int, number: int) -> _Added:
    """Return ``file`` with its final path, which is the same in each attempt of a commit.

    ``count`` is the position of the file in the commit, and ``number`` that of the commit.
    """
    folder, _, aside = file.path.rpartition("/")
    if commit.app:
        writer = hashlib.blake2b(commit.app.encode(), digest_size=6).hexdigest()
        stem = f"{writer}-{commit.version:012}-{count:03}"
    else:
        stem = f"compacted-{number:012}-{count:03}"
    path = f"{folder}/{stem}.parquet" if folder else f"{stem}.parquet"
    return _Added(msgspec.structs.replace(file, path=path), aside)


def _with_content(
    contents: Mapping[str, Mapping[int, str]], record: _Record
) -> Mapping[str, Mapping[int, str]]:
    """Return ``contents`` extended by the content identity that ``record`` stores; only the newest
    versions of the writer are kept."""
    if not record.content:
        return contents
    versions = {**contents.get(record.app, {}), record.version: record.content}
    newest = dict(sorted(versions.items())[-CONTENTS_MAX:])
    return {**contents, record.app: newest}


def _replaced_path(path: str) -> str:
    """Return the path of a replaced file after it was moved. The folder is flat, so slashes are
    replaced."""
    return f"{REPLACED}/{path.replace('/', '~')}"


def _schema_text(schema: pa.Schema) -> str:
    """Return a schema as Base64 text."""
    return base64.b64encode(schema_bytes(schema)).decode()
