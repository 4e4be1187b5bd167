"""The one warning category of this library, so that a program can filter or raise it."""


class BitcycleWarning(UserWarning):
    """Something a user asked for has no effect, or less effect than it seems."""
