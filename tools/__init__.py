"""Scripts for people who work on Lakewarden; not part of the package."""
