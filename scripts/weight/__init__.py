"""Measures of the source: how large it is, how it hangs together, what one publish calls in it.

``python -m scripts.weight`` prints two tables: the size of each package, and figures with their
targets. ``source`` reads files, ``sizes`` measures packages, ``growth`` compares them with their
record, ``shape`` measures what is written, ``publish`` counts the calls of one publish while it
runs.
"""
