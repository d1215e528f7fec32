"""What can be asked of a realm, and what it answers: requests and answers, free of any wire.

Every front end fills in these structs; none of them has a shape of its own for what they say.
"""
