"""HTTP: the administration API, metrics, health, and the console's files."""
