"""The job handoff, and everything else that works on the cold tier."""
