"""Event ids: spans, and sets of ids."""
