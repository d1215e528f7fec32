"""The events of a channel: what is in memory, in the journal, in pages and sealed files."""
