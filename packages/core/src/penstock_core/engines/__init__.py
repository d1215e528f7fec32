"""The fan-out engines. Each file exports one as ``ENGINE``; no other registration is needed."""
