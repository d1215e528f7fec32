"""The connection to a realm: its URL, sign-in, transport, and requests that wait for an answer."""
