"""State of the realm as a whole: its directory, joins, transactions and exports."""
