"""Speed beside other servers: one table a shape, every peer in the same run.

``penstock bench S1`` runs a shape; in a checkout of the source ``penstock bench report`` renews the
page in ``docs`` and its pictures. ``peers`` has one file a server, ``shapes`` one a kind of work.
"""
