"""Model files: which there are, where they come from, where they are kept, and the one that embeds texts."""
