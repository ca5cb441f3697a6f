"""The HTTP API: everything that Python can do with an executor and its store, for the holders of keys."""
