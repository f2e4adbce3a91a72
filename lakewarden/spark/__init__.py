"""The Spark session, its tasks, and the Java and jars that it needs."""
