"""A lake: the archive and streams as Parquet files, and the pipelines that write them."""
