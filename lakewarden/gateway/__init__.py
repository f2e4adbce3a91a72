"""An Iceberg REST catalog's door-keeper: every engine's commits are judged before the catalog behind it sees them."""
