"""The fan-out engines. One file each; the file exports ``ENGINE``. Nothing else to register."""
