"""The entry point of a running realm, and a handler for each type of request."""
