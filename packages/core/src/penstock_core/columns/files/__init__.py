"""Files of events: segments, growing files, archives and exports."""
