"""The durable types (SEM D). One file each; the file exports ``KIND``. Nothing else to register."""
