"""Parts that every front end needs: TLS, transports, protocol detection, back-pressure, errors."""
