"""One module per framework, each with a class `Host`."""
