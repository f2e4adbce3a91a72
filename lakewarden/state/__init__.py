"""The state database: what Lakewarden stores about runs, tables, trash, holds and health. One module per
noun."""
