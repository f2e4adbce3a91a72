"""A gateway in front of an Iceberg REST catalog: it judges the commits of every engine before the catalog sees them."""
