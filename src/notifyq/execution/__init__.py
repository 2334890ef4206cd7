"""One call of a handler, from a locked row to an outcome."""
