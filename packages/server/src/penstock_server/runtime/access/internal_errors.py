"""Internal errors: the log has the details, the client only an id to find them by."""

from __future__ import annotations

import secrets

from penstock_core.vocabulary.errors import Internal


def new_incident_id() -> str:
    """Return a random id for a failure."""
    return secrets.token_hex(6)


def as_internal_error(incident: str) -> Internal:
    """Return the error for the client, with the id only: the texts of failures contain paths,
    names and values of other users."""
    return Internal(
        f"internal error of the realm (incident {incident}); its log has the details under this "
        f"number"
    )
