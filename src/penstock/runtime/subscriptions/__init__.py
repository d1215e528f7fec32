"""Subscriptions and browses: where they begin, what they match, what is shown of them."""
