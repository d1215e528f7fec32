"""The durable types (SEM D). Each file exports one as ``KIND``; no other registration is needed."""
