"""sweep: plan and execute."""
