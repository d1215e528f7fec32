"""The blocking client: the asynchronous one on a private loop thread."""
