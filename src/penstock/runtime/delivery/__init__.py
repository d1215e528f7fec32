"""What the core has offered, read from the store and sent."""
