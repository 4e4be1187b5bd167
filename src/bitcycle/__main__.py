"""`python -m bitcycle`: the command line, as torchrun and accelerate launch want it."""

import sys

from bitcycle.cli.main import main

sys.exit(main())
