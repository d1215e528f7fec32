"""Publishing: batches, producers that send again after a lost connection, transactions."""
