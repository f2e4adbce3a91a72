"""The health of tables: numbers from metadata, a score, warnings, metrics, and the effect of another policy."""
