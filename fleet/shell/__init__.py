"""The database, threads and clocks."""
