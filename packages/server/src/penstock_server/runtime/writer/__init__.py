"""The single writer: groups of requests, their block in the journal, and what follows."""
