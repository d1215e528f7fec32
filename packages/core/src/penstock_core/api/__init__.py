"""The realm's API: requests and their answers as plain structs, independent of any protocol.

Each front end fills in and reads these structs and has no other model of requests.
"""
