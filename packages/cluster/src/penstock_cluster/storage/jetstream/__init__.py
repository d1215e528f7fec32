"""The storage ports on NATS JetStream: streams that a majority of three servers stores."""
