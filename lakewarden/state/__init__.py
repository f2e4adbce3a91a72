"""The state database: what Lakewarden itself must remember. One module per noun."""
