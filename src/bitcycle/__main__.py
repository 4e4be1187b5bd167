"""`python -m bitcycle`: the command line, for torchrun and accelerate launch."""

import sys

from bitcycle.cli.main import main

sys.exit(main())
