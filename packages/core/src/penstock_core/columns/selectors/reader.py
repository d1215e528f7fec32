"""Reads the tokens of a selector one after the other, and makes errors about the current token."""

from __future__ import annotations

from penstock_core.columns.selectors.faults import MalformedSelector, fault
from penstock_core.columns.selectors.tokens import Token, TokenKind, tokenize


class TokenReader:
    """A pass over the tokens of a text with one token of lookahead."""

    __slots__ = ("_index", "_text", "_tokens")

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._index = 0

    @property
    def token(self) -> Token:
        """The next token, not consumed yet."""
        return self._tokens[self._index]

    @property
    def previous(self) -> Token:
        """The last consumed token; at the start, the next token."""
        return self._tokens[max(self._index - 1, 0)]

    @property
    def place(self) -> str:
        """Description of the position of the next token."""
        return f"after {self.previous.shown}" if self._index else "at the beginning"

    def advance(self) -> Token:
        """Consume the next token and return it. The end token is never consumed."""
        token = self.token
        if token.kind is not TokenKind.END:
            self._index += 1
        return token

    def is_next(self, sign: str) -> bool:
        """Whether ``sign``, an operator or a keyword, is the next token."""
        token = self.token
        return token.kind in (TokenKind.SIGN, TokenKind.KEYWORD) and token.text == sign

    def accept(self, sign: str) -> bool:
        """Consume ``sign`` if it is the next token. Return whether it was consumed."""
        if not self.is_next(sign):
            return False
        self.advance()
        return True

    def expect(self, *signs: str) -> Token:
        """Consume and return the next token, one of ``signs``. Raises ``InvalidSelector`` for any
        other token."""
        if not any(self.is_next(sign) for sign in signs):
            expected = " or ".join(f"'{sign}'" for sign in signs)
            raise self.fault(f"{expected} {self.place}")
        return self.advance()

    def written(self, token: Token) -> str:
        """Return the text of ``token`` as written, also for keywords."""
        return self._text[token.position : token.position + len(token.text)]

    def text_literal(self, expected: str) -> str:
        """Consume a text literal and return its value. Raises ``InvalidSelector``, whose
        text names ``expected``, if the next token is not a text."""
        if self.token.kind is not TokenKind.TEXT:
            raise self.fault(f"{expected} {self.place}")
        return str(self.advance().value)

    def fault(
        self, expected: str, token_at: Token | None = None, actual: str | None = None
    ) -> MalformedSelector:
        """Return the error for a token, by default the next token. ``expected`` describes the
        allowed text, ``actual`` the wrong text if it is not the token itself."""
        token = token_at or self.token
        return fault(self._text, token.position, expected, actual=actual or token.shown)
