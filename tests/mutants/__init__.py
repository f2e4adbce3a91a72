"""Known losses, put back one at a time: the test named for each must turn red."""
