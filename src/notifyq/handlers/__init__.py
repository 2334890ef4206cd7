"""The user's functions: what they take, how they retry, what they share."""
