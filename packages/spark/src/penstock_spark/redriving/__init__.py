"""Redrive by a pipeline: dead events are changed and go back, in one step, with a record of it."""
