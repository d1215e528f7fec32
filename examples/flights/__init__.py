"""The job behind ``make run``: a year of real flights, from the publisher to Spark tables."""
