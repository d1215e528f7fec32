"""Programs that show Penstock at work."""
