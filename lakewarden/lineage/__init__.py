"""What produced a commit, written into the snapshot's summary by the one who commits."""
