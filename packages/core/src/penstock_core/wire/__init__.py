"""Wire protocols without I/O: bytes to frames to messages and back, one package per protocol."""
