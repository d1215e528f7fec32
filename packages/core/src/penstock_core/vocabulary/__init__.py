"""Vocabulary of the core: attributes, names, effects, errors, and the ports to the outside."""
