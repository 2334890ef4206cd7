"""LISTEN and NOTIFY: hear, wake, and suppress notifications that nobody needs."""
