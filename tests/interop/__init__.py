"""Real engines that we did not write, as writers beside Lakewarden and as judges of its work: `make interop`."""
