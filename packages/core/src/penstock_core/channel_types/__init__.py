"""The channel types (SEM C1). Each file exports one as ``TYPE``; no other registration is
needed."""
