"""Copies of a realm: exports, imports, backups, and the object stores they go to."""
