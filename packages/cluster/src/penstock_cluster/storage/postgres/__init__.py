"""A realm's storage in PostgreSQL with synchronous standbys: journal, register and blobs.

A block is a row. The fence is one update of the journal's head row: an append names the epoch in
which it was opened, so it matches no row once a newer epoch has begun.
"""
