"""Benchmarks that compare Penstock with other servers: one table per shape (kind of work).

``python -m bench S1`` runs a shape, ``python -m bench --all`` all shapes as one run that can be
resumed; ``python -m bench report`` writes the page in ``docs``, its pictures and the table of the
README again. This program belongs to the repository, not to a package: Penstock never imports it.

The folder ``peers`` has one file per server, ``shapes`` one per shape. A new shape needs a file,
and an entry in ``bench.catalogue`` if its runs take longer than its ``seconds``; the page gets a
section for it. A row where Penstock is slower needs a sentence in ``bench.slower``.
"""
