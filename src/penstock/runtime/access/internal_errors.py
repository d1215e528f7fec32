"""What nobody foresaw: the log has all of it, who asked a number to be found there by."""

from __future__ import annotations

import secrets

from penstock.core.vocabulary.errors import Internal


def incident() -> str:
    """A number that no other failure has."""
    return secrets.token_hex(6)


def told(incident: str) -> Internal:
    """What whoever asked may know: texts of failures tell paths, names and values of others."""
    return Internal(
        f"internal error of the realm (incident {incident}); its log has the details under this "
        f"number"
    )
