"""Connections to PostgreSQL, retries and statements."""
