"""Running calls: authorised, scheduled, cancellable, at most once, accounted for."""
