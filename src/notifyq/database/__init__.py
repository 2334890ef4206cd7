"""Connections to PostgreSQL, retries and statements, and the encryption of what is stored."""
