"""`python -m bitcycle`: the command line, for torchrun and accelerate launch."""

import sys

from bitcycle_lab.cli.main import main

sys.exit(main())
