"""Real parts the tests run on, each started by the tests themselves on the loopback."""
