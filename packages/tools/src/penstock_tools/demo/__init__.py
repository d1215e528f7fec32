"""A cluster for a try: engine servers, nodes and traffic on one machine, on one screen."""
