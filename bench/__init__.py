"""Benchmarks: notifyq and other queues do the same work on one PostgreSQL server in one run."""
