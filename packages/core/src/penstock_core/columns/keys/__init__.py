"""Publish keys: which slot an event takes, how many a key keeps."""
