"""Test kit for Penstock and for adapters: contracts, a simulation, faulty disks and networks."""
