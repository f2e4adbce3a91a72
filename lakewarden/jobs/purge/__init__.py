"""purge: plan and execute."""
