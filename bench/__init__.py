"""The same work on notifyq and on other queues, on one PostgreSQL server, in one run."""
