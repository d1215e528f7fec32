"""Measures of the source: its size, the imports between its parts, and the calls of one publish.

``python -m scripts.weight`` prints two tables: the size of each package, and figures with their
targets. ``source`` reads files, ``sizes`` measures packages, ``growth`` compares them with their
record, ``shape`` measures the text of the modules, and ``publish`` counts the calls of one publish
while it runs.
"""
