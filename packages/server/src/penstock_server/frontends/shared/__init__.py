"""What all front ends share: TLS, transports, protocol detection, back-pressure, errors."""
