"""A messy sample lake that needs no services, to try Lakewarden on."""
