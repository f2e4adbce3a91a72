"""Where heavy work runs: the Spark session, its Java and its jars."""
