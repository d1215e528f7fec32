"""What is read for one answer: pages of events, sums over them, counters, the state of others."""
