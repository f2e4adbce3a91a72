"""compact and compact-deletes: plan and execute."""
