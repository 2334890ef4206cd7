"""Faults on purpose: a server, workers and publishers of its own, and a checker of what is left."""
