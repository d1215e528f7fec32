"""A demonstration of a cluster: engine servers, nodes and traffic on one machine, shown on one
screen."""
