"""The schema of a channel: its layout, property columns, and how a batch fits into it."""
