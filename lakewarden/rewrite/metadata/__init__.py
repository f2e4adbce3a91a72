"""Reading Avro metadata in bulk."""
