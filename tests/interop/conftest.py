"""pytest collects nothing here: these cases run by `make interop`."""

collect_ignore_glob = ["*"]
