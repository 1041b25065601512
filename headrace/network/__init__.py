"""Messages between the processes of one engine, over Arrow Flight."""
