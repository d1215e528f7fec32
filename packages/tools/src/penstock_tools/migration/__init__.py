"""Topologies from the configuration of other brokers, and the files that their clients need."""
