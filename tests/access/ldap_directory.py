"""A small LDAP directory that answers binds and searches for one value, and may misbehave."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

PEOPLE = "ou=people,dc=example"
GROUPS = "ou=groups,dc=example"
SERVICE = "cn=reader,dc=example"
SERVICE_PASSWORD = "of the reader"

Entry = Mapping[str, Sequence[str]]

_BIND, _UNBIND, _SEARCH, _EXTENDED = 0x60, 0x42, 0x63, 0x77
_EQUALITY = 0xA3
_SUCCESS, _NO_SUCH_OBJECT, _INVALID_CREDENTIALS = 0, 32, 49


def tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def parts(content: bytes) -> list[tuple[int, bytes]]:
    """The tags and contents in a constructed value."""
    elements = []
    while content:
        tag, size, start = content[0], content[1], 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(content[2:start], "big")
        elements.append((tag, content[start : start + size]))
        content = content[start + size :]
    return elements


def result(tag: int, code: int, more: bytes = b"") -> bytes:
    return tlv(tag, tlv(0x0A, bytes((code,))) + tlv(0x04, b"") + tlv(0x04, b"") + more)


def unescaped(name: str) -> str:
    """A distinguished name without its escapes, in lower case, as the directory compares it."""
    octets = re.sub(
        rb"\\([0-9a-fA-F]{2})", lambda escape: bytes.fromhex(escape[1].decode()), name.encode()
    )
    return octets.decode().lower()


class Directory:
    """``ann`` is in the groups ``ops`` and ``dev``; names and passwords are those in ``people``."""

    def __init__(self, context: ssl.SSLContext | None = None, *, starts_tls: bool = False) -> None:
        self.people: dict[str, str] = {"ann": "secret", "bob": "hidden", "a*b": "star"}
        self.groups_of: dict[str, list[str]] = {"ann": ["ops", "dev"]}
        self.misbehaviour = ""
        """``silent``, ``garbage``, ``drip``, ``refers``, ``busy`` or ``hangs up``."""
        self.binds: list[tuple[str, str]] = []
        self.searches: list[tuple[str, str, str]] = []
        self._context, self._starts_tls = context, starts_tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._peers: list[socket.socket] = []
        scheme = "ldaps" if context and not starts_tls else "ldap"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listener.close()
        for peer in self._peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(OSError):
            if self._context is not None and not self._starts_tls:
                peer = self._context.wrap_socket(peer, server_side=True)
                self._peers.append(peer)
            while (message := _message_of(peer)) is not None:
                (_, number), (tag, content), *_ = parts(message)
                if tag == _UNBIND or not self._misbehaves(peer):
                    break
                for answer in self._answers(tag, content):
                    peer.sendall(tlv(0x30, tlv(0x02, number) + answer))
                if tag == _EXTENDED and self._context is not None:
                    peer = self._context.wrap_socket(peer, server_side=True)
                    self._peers.append(peer)

    def _misbehaves(self, peer: socket.socket) -> bool:
        """Whether the directory answers at all."""
        match self.misbehaviour:
            case "silent":
                self._ended.wait()
            case "garbage":
                peer.sendall(bytes(range(1, 200)))
            case "drip":
                peer.sendall(b"\x30\x84\x00\xff\xff\xff")
                while not self._ended.wait(0.05):
                    peer.sendall(b"\x04")
            case "hangs up":
                peer.shutdown(socket.SHUT_RDWR)
            case _:
                return True
        return False

    def _answers(self, tag: int, content: bytes) -> Iterator[bytes]:
        if tag == _BIND:
            _, (_, name), (_, password) = parts(content)
            yield result(0x61, self._bind(name.decode(), password.decode()))
        elif tag == _SEARCH:
            yield from self._search(content)
        else:
            yield result(0x78, _SUCCESS if self._context is not None else 2)

    def _bind(self, name: str, password: str) -> int:
        self.binds.append((name, password))
        if self.misbehaviour in ("refers", "busy"):
            return 10 if self.misbehaviour == "refers" else 51
        if not name or not password:
            return _SUCCESS  # anonymous and unauthenticated binds, which prove nothing
        passwords = {f"uid={user},{PEOPLE}": text for user, text in self.people.items()}
        passwords[SERVICE] = SERVICE_PASSWORD
        expected = passwords.get(unescaped(name))
        return _SUCCESS if expected == password else _INVALID_CREDENTIALS

    def _search(self, content: bytes) -> Iterator[bytes]:
        (_, base), (_, scope), _, _, _, _, (tag, condition), _ = parts(content)
        attribute, value = "", ""
        if tag == _EQUALITY:
            attribute, value = (text.decode() for _, text in parts(condition))
        self.searches.append((base.decode(), attribute, value))
        for name, entry in self._entries(base.decode(), is_subtree=scope != b"\0"):
            if not attribute or unescaped(value) in map(unescaped, entry.get(attribute, ())):
                values = b"".join(
                    tlv(0x30, tlv(4, kind.encode()) + tlv(0x31, _octets(texts)))
                    for kind, texts in entry.items()
                )
                yield tlv(0x64, tlv(4, name.encode()) + tlv(0x30, values))
        yield tlv(0x73, tlv(4, b"ldap://127.0.0.1:1/dc=elsewhere"))
        yield result(0x65, _SUCCESS)

    def _entries(self, base: str, *, is_subtree: bool) -> Iterator[tuple[str, Entry]]:
        members: dict[str, list[str]] = {}
        for user in self.people:
            name = f"uid={user.replace(',', chr(92) + '2c')},{PEOPLE}"
            groups = self.groups_of.get(user, [])
            for group in groups:
                members.setdefault(group, []).append(name)
            texts = [group if "=" in group else f"cn={group},{GROUPS}" for group in groups]
            if (is_subtree and base == PEOPLE) or unescaped(name) == unescaped(base):
                yield name, {"uid": [user], "MemberOf": texts}
        if base == GROUPS:
            for group, names in members.items():
                yield f"cn={group},{GROUPS}", {"cn": [group], "member": names}


def _octets(texts: Sequence[str]) -> bytes:
    return b"".join(tlv(4, text.encode()) for text in texts)


def _message_of(peer: socket.socket) -> bytes | None:
    """The next message of a client; None at the end of its connection."""
    head = peer.recv(2, socket.MSG_WAITALL) if not isinstance(peer, ssl.SSLSocket) else peer.recv(2)
    if len(head) < 2:
        return None
    size = head[1]
    if size & 0x80:
        size = int.from_bytes(_exactly(peer, size & 0x7F), "big")
    return _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        content += peer.recv(size - len(content))
    return content


@contextmanager
def directory(
    context: ssl.SSLContext | None = None, *, starts_tls: bool = False
) -> Iterator[Directory]:
    made = Directory(context, starts_tls=starts_tls)
    try:
        yield made
    finally:
        made.close()
