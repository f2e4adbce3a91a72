"""What is shown: one frozen value per thing. `--json` prints its `to_dict()`, a terminal its `render()`."""
