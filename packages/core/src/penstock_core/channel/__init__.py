"""A channel as a state machine: decide, apply, offer, and what these share."""
