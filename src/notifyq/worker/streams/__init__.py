"""Serve the subscriptions of a worker."""
