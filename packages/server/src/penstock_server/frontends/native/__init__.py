"""The native protocol: its listener, connections, and one handler for each request."""
