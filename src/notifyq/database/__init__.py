"""Connections, retries and statements: all that talks to PostgreSQL stands on this."""
