"""The history of the tables. A change of `tables.py` comes with a new file in `versions/`; a test compares the two."""
