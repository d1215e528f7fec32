"""Events as Arrow batches: bodies, single events and the digest that the core decides on."""
