"""Channels and queues as Iceberg tables: a read-only REST catalog and the files of its tables."""
