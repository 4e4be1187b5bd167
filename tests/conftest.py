"""What every test can rely on."""

import signal

from hypothesis import HealthCheck, settings

# a job in the background begins with Ctrl-C ignored, and so would the programs that tests stop
signal.signal(signal.SIGINT, signal.default_int_handler)

# a busy machine fails no test
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")
