"""Copies of a realm: exports, imports and backups, and the places where they are stored."""
