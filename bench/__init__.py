"""Benchmarks that compare Penstock with other servers: one table per shape (kind of work).

``python -m bench S1`` runs a shape; ``python -m bench report`` writes the page in ``docs`` and its
pictures again. The folder ``peers`` has one file per server, ``shapes`` one per shape. This program
belongs to the repository, not to a package: Penstock never imports it.
"""
