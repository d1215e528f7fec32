"""One file per peer: how to start its server and how to use its client."""
