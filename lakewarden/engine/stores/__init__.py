"""The kinds of store behind engine/objects.py: local files, S3, other clouds, and whatever pyarrow can open."""
