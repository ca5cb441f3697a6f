"""What each API refuses, as small functions that cite the section of notes/providers.md they come from."""
