"""What tests of Penstock, and of adapters for it, are built from."""
