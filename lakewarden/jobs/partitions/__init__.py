"""expire-partitions: plan and execute."""
