"""The door of a running realm, and a handler for each request."""
