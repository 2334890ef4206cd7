"""The archive and streams as data: a lake, a data source of Spark, and pipelines between them."""
