"""One file a peer: how to start its server and to use its client."""
