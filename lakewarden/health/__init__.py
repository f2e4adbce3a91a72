"""How tables are: numbers from metadata, a score, warnings, metrics, and what another policy would change."""
