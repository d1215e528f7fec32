"""Subscriptions and browses: where they begin, what they match, and views of the realm."""
