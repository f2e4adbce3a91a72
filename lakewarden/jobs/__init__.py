"""The jobs. Each has a pure planner and, beside it, its execution."""
