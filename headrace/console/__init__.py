"""The HTTP port: health for machines, and the console for people."""
