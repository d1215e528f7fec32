"""Redrive by a pipeline: dead events are changed and returned, in one step with a record of it."""
