"""A messy sample lake that needs no services, to see Lakewarden at work on."""
