"""The console: pages, the REST API and /metrics, for people and programs."""
