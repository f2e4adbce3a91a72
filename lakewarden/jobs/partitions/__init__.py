"""The job expire-partitions."""
