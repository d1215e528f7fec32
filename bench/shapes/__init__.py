"""One file per shape; ``SHAPE`` in each is the object that measures it."""
