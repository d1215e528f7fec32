"""Internal errors: the details are in the log, and the client gets an id to find them there."""

from __future__ import annotations

import secrets

from penstock_core.vocabulary.errors import Internal


def new_incident_id() -> str:
    """Return a random id for a failure."""
    return secrets.token_hex(6)


def as_internal_error(incident: str) -> Internal:
    """Return the error for the client. It has only the id of the incident, because the text of a
    failure may contain paths, and names and values of other users."""
    return Internal(
        f"internal error of the realm (incident {incident}); its log has the details under this "
        f"number"
    )
