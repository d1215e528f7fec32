"""One file a shape: ``SHAPE`` in each is what it does."""
