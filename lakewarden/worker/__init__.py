"""The worker: it leads by a lease, knows who is due, and does passes one after the other, for months."""
