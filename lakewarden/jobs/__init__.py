"""One job, one file: a pure planner, and the doing told in order."""
