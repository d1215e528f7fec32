"""Reads for single answers: pages of events, sums over them, counters, states of pipelines."""
