"""The settings: their schema, and how they are loaded."""
