"""Other source databases: their tables, and the replication of their changes into the main WAL."""
