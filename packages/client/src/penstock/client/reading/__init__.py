"""Reading: subscriptions, durables, readers, browsing, archives, and their settlements."""
