"""What a session gives out: channels, queues, durables, joins and access, each as a handle."""
