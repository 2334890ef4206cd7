"""Tools for the people on call."""
