"""Where heavy work runs: the Spark session, the engines behind one seam, and the kernels."""
