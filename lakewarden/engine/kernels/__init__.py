"""Plain functions on pyarrow that run inside a Spark task: paths in, Parquet out, a few numbers back."""
