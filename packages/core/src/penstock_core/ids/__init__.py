"""Event ids as spans and sets of spans."""
