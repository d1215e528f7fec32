"""Rights, access control lists, ownership of names, and the lockout after wrong passwords."""
