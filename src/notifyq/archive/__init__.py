"""Finished messages: read, follow and export them."""
