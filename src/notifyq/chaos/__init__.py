"""Fault injection: private servers, workers and publishers, and a checker of the results."""
