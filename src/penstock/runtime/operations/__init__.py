"""What can be asked of a running realm: one door, and what is behind it for each request."""
