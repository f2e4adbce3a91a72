"""The services of `Lakewarden`: holds, history, tiers, schedule and health. What they share is in `deps`."""
