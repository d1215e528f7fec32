"""Speed beside other servers: one table a shape, every peer in the same run.

``python -m bench S1`` runs a shape, ``python -m bench report`` renews the page in ``docs``.
"""
