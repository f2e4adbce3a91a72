"""Access to files on local disks, S3, other clouds and every store that pyarrow can open, behind storage/objects.py."""
