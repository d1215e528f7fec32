"""One channel as a state machine: decide, apply, offer, and what they share."""
