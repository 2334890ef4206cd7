"""A Django app: the schema by `migrate`, `manage.py notifyq`, Django's tasks, and admin pages."""
