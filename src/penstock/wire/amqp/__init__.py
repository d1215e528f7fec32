"""AMQP 1.0 on the wire, sans-IO: the type system, the sections of a message, SASL frames.

Connections, sessions and links are Apache Qpid Proton's (``penstock.frontends.amqp.engine``);
here is what Proton leaves to those who want to be fast, or does not offer to a server.
"""
