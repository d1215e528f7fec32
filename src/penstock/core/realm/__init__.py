"""What belongs to the realm as a whole: its directory, joins, transactions and exports."""
