"""LISTEN and NOTIFY: one listening session, when to poll, and when publishers may skip NOTIFY."""
