"""Pipelines that count the archive, find anomalies in it, and fill it with a sample."""
