"""The asyncio shell around the core: group commit, deliveries, timers, sealing, recovery."""
