"""Recovery, sealing, compaction, verification and repair of files."""
