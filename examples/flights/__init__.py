"""A year of real flights, from a publish to a Spark table: the job behind ``make run``."""
