"""The kinds of store behind storage/objects.py: local files, S3, other clouds, and whatever pyarrow can open."""
