"""The values that pass between the layers."""
