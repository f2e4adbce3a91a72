"""What must stay, and the only key to deletion."""
