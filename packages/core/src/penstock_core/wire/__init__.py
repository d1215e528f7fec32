"""Wire protocols without I/O: converts bytes to frames and messages, and back."""
