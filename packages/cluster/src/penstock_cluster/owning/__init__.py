"""Who owns a shard of a cluster, and for how long that holds."""
