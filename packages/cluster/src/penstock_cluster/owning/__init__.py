"""Ownership of the shards of a cluster: claims, leases and the records of the register."""
