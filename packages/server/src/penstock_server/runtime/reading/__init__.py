"""Reads for single answers: pages of events, counts of events, states of pipelines."""
