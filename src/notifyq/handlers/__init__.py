"""The functions of the user: handlers, subscribers, cron functions and their resources."""
