"""Passes errors of Penstock through the texts of Spark's exceptions, as authenticated marks.

Spark passes an exception of a task or a reader to the driver as text. The text also quotes values
of events, so its words are not reliable. In a pipeline, the process that raises an error therefore
adds a mark to the message: the error's code, whether the error is retryable, whether the input
caused it, and its text. A secret that only the driver and its tasks know authenticates the mark.
The option ``errorSecret`` passes the secret to the tasks; Spark redacts options with such a name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import PenstockError, SessionClosed

SECRET_OPTION: Final = "errorSecret"

Blame = Literal["input", "realm"]

_MARK: Final = re.compile(r"<penstock-error ([0-9a-f]{32}) ([A-Za-z0-9_=-]{4,})>")
_MARK_TEXT_MAX: Final = 4_000
"""Largest number of characters of an error's text in a mark. The text is limited because Spark
copies the mark into several exceptions."""

_ATTACHED: Final = "_penstock_carried"
"""Attribute of an error object that has a mark: the :class:`CarriedError` in the mark."""

_driver: dict[str, str] = {}
"""The secret of this process, after the first call of :func:`driver_secret`."""


class CarriedError(Struct, frozen=True):
    """An error of Penstock that was raised in another process."""

    code: str
    retryable: bool
    blame: Blame
    text: str

    @property
    def may_pass(self) -> bool:
        """Whether a restart of the step may succeed. A restart also opens a new session."""
        return self.retryable or self.code == SessionClosed.code


def carried(error: PenstockError) -> CarriedError:
    """Return the parts of an error that a mark carries."""
    attached = _attached(error)
    if attached is not None:
        return attached
    # `_message` is the text of a converted error, without the condition that Spark adds.
    text = str(error.__dict__.get("_message") or error)
    return CarriedError(error.code, error.retryable, blame_of(error), text=text[:_MARK_TEXT_MAX])


def blame_of(error: PenstockError) -> Blame:
    """Return whether the input or the realm caused an error."""
    return "input" if error.blames_input else "realm"


def driver_secret() -> str:
    """Return the secret of this driver. The first call creates it; all queries of the driver share
    it."""
    return _driver.setdefault("secret", secrets.token_hex(16))


def active_secret() -> str:
    """Return the secret of this driver; empty before a pipeline or a search has created it."""
    return _driver.get("secret", "")


def secret_options() -> dict[str, str]:
    """Return the option that makes readers and writers mark their errors for this driver."""
    return {SECRET_OPTION: driver_secret()}


def secret_in(options: Mapping[str, str]) -> str:
    """Return the secret in the options of a read or write; empty if errors are not marked."""
    name = SECRET_OPTION.lower()
    return next((text for key, text in options.items() if key.lower() == name), "")


def mark(error: PenstockError, secret: str) -> str:
    """Return the mark of an error, without line breaks: Spark indents the lines of a text."""
    content = base64.urlsafe_b64encode(msgspec.json.encode(carried(error))).decode()
    return f"<penstock-error {_digest(content, secret)} {content}>"


def marked_error(text: str, secret: str) -> CarriedError | None:
    """Return the error in the last authentic mark of a text; None if the text has no such mark."""
    if not secret:
        return None
    # The last mark is that of the innermost exception.
    for digest, content in reversed(_MARK.findall(text)):
        if hmac.compare_digest(digest, _digest(content, secret)):
            try:
                return msgspec.json.decode(base64.urlsafe_b64decode(content), type=CarriedError)
            except (msgspec.MsgspecError, binascii.Error, RecursionError):
                continue  # marked by another version of the package
    return None


def unmarked(text: str) -> str:
    """Return ``text`` without marks."""
    return _MARK.sub("", text)


def attach(error: PenstockError, secret: str) -> None:
    """Add a mark to the message of an error, unless the secret is empty or the error has a mark."""
    if not secret or _attached(error) is not None:
        return
    text = mark(error, secret)
    values: Any = error.__dict__
    values[_ATTACHED] = carried(error)
    if "_message" in values:  # an error that is also Spark's
        values["_message"] += f"\n{text}"
    error.args = (f"{error.args[0] if error.args else ''}\n{text}", *error.args[1:])


def _attached(error: PenstockError) -> CarriedError | None:
    data = error.__dict__.get(_ATTACHED)
    return data if isinstance(data, CarriedError) else None


@contextmanager
def marking(secret: str) -> Iterator[None]:
    """Mark each error of Penstock that is raised in the ``with`` block."""
    try:
        yield
    except PenstockError as error:
        from penstock_spark.errors.errors import hide_traceback

        hide_traceback()
        attach(error, secret)
        raise


def _digest(content: str, secret: str) -> str:
    return hmac.digest(secret.encode(), content.encode(), "sha256")[:16].hex()
