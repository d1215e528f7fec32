"""A simulated edge node that speaks Sparkplug B to a realm, and a host application that reads its
messages."""
