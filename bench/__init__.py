"""Speed beside other servers: one table a shape, every peer in the same run.

``python -m bench S1`` runs a shape; ``python -m bench report`` renews the page in ``docs`` and its
pictures. ``peers`` has one file a server, ``shapes`` one a kind of work. It is a program of the
repository and no part of the package: Penstock never imports it.
"""
