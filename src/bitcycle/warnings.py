"""The warning category of this library, for filters."""


class BitcycleWarning(UserWarning):
    """A setting has no effect, or less effect than it seems."""
