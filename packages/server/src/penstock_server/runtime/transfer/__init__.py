"""Exports, imports and backups in progress."""
