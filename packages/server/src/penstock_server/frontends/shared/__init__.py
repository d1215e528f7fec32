"""Shared parts of all front ends: TLS, transports, protocol detection, backpressure, errors."""
