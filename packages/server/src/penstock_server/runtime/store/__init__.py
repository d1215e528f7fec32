"""The stored events of channels: in memory, in the journal, in pages and in sealed files."""
