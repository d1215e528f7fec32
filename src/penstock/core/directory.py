"""The namespace of a realm: which channels there are, by name and by number (SEM C2, C3)."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.channel import Channel
from penstock.core.errors import InvalidArgument, InvalidName, NameAlreadyBound, NameDoesNotExist
from penstock.core.messages import Definition
from penstock.core.names import destination_name
from penstock.core.retention import check_limits
from penstock.core.state import Rules


class RealmFact(Struct, frozen=True, tag=True, array_like=True):
    """Something that has happened to the namespace."""


class ChannelCreated(RealmFact, frozen=True):
    number: int
    """Never reused: a channel deleted and created again is another channel."""
    name: str
    definition: Definition


class ChannelDeleted(RealmFact, frozen=True):
    number: int


AnyRealmFact = ChannelCreated | ChannelDeleted


class Directory:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.channels: dict[int, Channel] = {}
        self._numbers: dict[str, int] = {}
        self._folders: dict[str, int] = {}
        """Folder name to the number of channels below it."""
        self.next_number = 1

    def decide_create(self, name: str, definition: Definition) -> ChannelCreated:
        """Raises ``InvalidName``, ``NameAlreadyBound`` or ``InvalidArgument``."""
        name = destination_name(name)
        self._refuse_clash(name)
        self._check(definition)
        return ChannelCreated(self.next_number, name, definition)

    def decide_delete(self, name: str) -> ChannelDeleted:
        return ChannelDeleted(self.number_of(name))

    def apply(self, fact: AnyRealmFact) -> None:
        match fact:
            case ChannelCreated(number, name, definition):
                self.next_number = max(self.next_number, number + 1)
                self.channels[number] = Channel(name, definition, self._rules)
                self._numbers[name] = number
                for folder in _folders(name):
                    self._folders[folder] = self._folders.get(folder, 0) + 1
            case ChannelDeleted(number):
                channel = self.channels.pop(number, None)
                if channel is None:
                    return
                del self._numbers[channel.state.name]
                for folder in _folders(channel.state.name):
                    self._folders[folder] -= 1
                    if not self._folders[folder]:
                        del self._folders[folder]

    def number_of(self, name: str) -> int:
        """Raises ``NameDoesNotExist``."""
        known = destination_name(name)
        try:
            return self._numbers[known]
        except KeyError:
            raise NameDoesNotExist(
                f"there is no channel {known}{self._near(known)}; "
                "create it first, or list the channels there are"
            ) from None

    def _near(self, name: str) -> str:
        for other in self._numbers:
            if other.lower() == name.lower():
                return f" (names are case-sensitive: there is {other})"
        return ""

    def _refuse_clash(self, name: str) -> None:
        if name in self._numbers:
            raise NameAlreadyBound(f"{name} exists already")
        if name in self._folders:
            raise InvalidName(f"{name} is a folder of other channels; a store cannot have its name")
        for folder in _folders(name):
            if folder in self._numbers:
                raise InvalidName(f"{folder} is a channel, so {name} cannot lie inside it")

    def _check(self, definition: Definition) -> None:
        for what, given, known in (
            ("type", definition.type, self._rules.types),
            ("engine", definition.engine, self._rules.engines),
        ):
            if given not in known:
                raise InvalidArgument(
                    f"{given!r} is no channel {what}; there are {', '.join(sorted(known))}"
                )
        check_limits(definition)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]
