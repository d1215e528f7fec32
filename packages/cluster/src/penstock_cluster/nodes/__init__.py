"""A node of a cluster, which serves the shards that it owns on the shared engine."""
