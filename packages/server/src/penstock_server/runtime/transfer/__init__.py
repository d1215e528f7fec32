"""Exports, imports and backups that are under way."""
