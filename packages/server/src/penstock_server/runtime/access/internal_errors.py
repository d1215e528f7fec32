"""Internal errors: the log has all of one, the client only a number to find it by."""

from __future__ import annotations

import secrets

from penstock_core.vocabulary.errors import Internal


def new_incident_id() -> str:
    """A number that no other failure has."""
    return secrets.token_hex(6)


def as_internal_error(incident: str) -> Internal:
    """The error for the client, with the number only: texts of failures tell paths, names and
    values of others."""
    return Internal(
        f"internal error of the realm (incident {incident}); its log has the details under this "
        f"number"
    )
