"""verify: proves again that a past rewrite kept all rows."""
