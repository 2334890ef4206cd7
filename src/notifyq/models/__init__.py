"""The rows that users see, and how an attempt ended."""
