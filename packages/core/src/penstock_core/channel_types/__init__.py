"""The channel types (SEM C1). One file each, exporting ``TYPE``. Nothing else to register."""
