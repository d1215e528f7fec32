"""Bytes to frames to messages and back, sans-IO: one package per protocol."""
