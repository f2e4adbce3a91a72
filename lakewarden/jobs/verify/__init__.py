"""verify: prove a past rewrite again."""
