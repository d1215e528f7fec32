"""Measures of the source: how large it is, how it hangs together, what one publish calls in it.

``python -m scripts.weight`` prints a table: figure, value, target. ``source`` reads files,
``shape`` measures what is written, ``publish`` counts the calls of one publish while it runs.
"""
