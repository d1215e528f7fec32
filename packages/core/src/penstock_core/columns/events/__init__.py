"""Events as Arrow batches: bodies, single events, the digest the core decides on."""
