"""Other databases: their tables, their changes on the way into our stream, their snapshots."""
