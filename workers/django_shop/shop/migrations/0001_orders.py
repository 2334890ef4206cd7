"""The table of orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("customer", models.TextField()),
                ("is_confirmed", models.BooleanField(default=False)),
            ],
        ),
    )
