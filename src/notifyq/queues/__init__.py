"""Publish into queues, administer them, and wait for results."""
