"""The data source `notifyq` of Spark: what it reads, and how reads are split and bounded."""
