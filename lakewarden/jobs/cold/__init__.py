"""handoff, and all that is done to the colder tier."""
