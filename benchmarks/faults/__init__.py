"""Fourteen faults, played against agent frameworks alone and with Handrail underneath: what really happened, and what
the model was told."""
