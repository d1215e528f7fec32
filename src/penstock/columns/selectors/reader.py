"""A place in the tokens of a selector, and errors about that place."""

from __future__ import annotations

from penstock.columns.selectors.faults import MalformedSelector, fault
from penstock.columns.selectors.tokens import Kind, Token, tokenize


class Reader:
    """Goes through the tokens of a text once, one token ahead."""

    __slots__ = ("_index", "_text", "_tokens")

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0

    @property
    def token(self) -> Token:
        """The next token, not taken yet."""
        return self._tokens[self._index]

    @property
    def previous(self) -> Token:
        """The token taken last; the next one at the beginning."""
        return self._tokens[max(self._index - 1, 0)]

    @property
    def place(self) -> str:
        """Where the next token stands, in words."""
        return f"after {self.previous.shown}" if self._index else "at the beginning"

    def advance(self) -> Token:
        """Take the next token; the end stays the next one for ever."""
        taken = self.token
        if taken.kind is not Kind.END:
            self._index += 1
        return taken

    def at(self, sign: str) -> bool:
        """Whether ``sign``, an operator or a keyword, comes next."""
        token = self.token
        return token.kind in (Kind.SIGN, Kind.KEYWORD) and token.text == sign

    def accept(self, sign: str) -> bool:
        """Take ``sign`` if it comes next."""
        if not self.at(sign):
            return False
        self.advance()
        return True

    def expect(self, *signs: str) -> Token:
        """Take one of ``signs``; raises ``InvalidSelector`` when something else comes."""
        if not any(self.at(sign) for sign in signs):
            wanted = " or ".join(f"'{sign}'" for sign in signs)
            raise self.fault(f"{wanted} {self.place}")
        return self.advance()

    def written(self, token: Token) -> str:
        """The text of ``token`` as it was written, keywords too."""
        return self._text[token.position : token.position + len(token.text)]

    def text_literal(self, expected: str) -> str:
        """Take a literal text and give its value."""
        if self.token.kind is not Kind.TEXT:
            raise self.fault(f"{expected} {self.place}")
        return str(self.advance().value)

    def fault(
        self, expected: str, at: Token | None = None, found: str | None = None
    ) -> MalformedSelector:
        """The error for the token ``at``, by default the next one."""
        token = at or self.token
        return fault(self._text, token.position, expected, found or token.shown)
