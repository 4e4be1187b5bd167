"""What every test can rely on."""

import signal

# a job in the background begins with Ctrl-C ignored, and so would the programs that tests stop
signal.signal(signal.SIGINT, signal.default_int_handler)
