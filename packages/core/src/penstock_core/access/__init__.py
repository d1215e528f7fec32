"""Rights, access lists, who owns a name, and the lockout of guessed passwords."""
