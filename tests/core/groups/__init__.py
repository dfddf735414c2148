"""Groups: values, ids and arguments of their members."""
