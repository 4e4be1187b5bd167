"""`python -m bitcycle`: the commands of the laboratory, for torchrun and accelerate launch."""

import sys

try:
    from bitcycle_lab.cli.main import main
except ModuleNotFoundError as error:
    if error.name != "bitcycle_lab":
        raise
    sys.exit(
        "bitcycle: error: the commands are in the package bitcycle_lab, which is not installed; "
        'pip install ".[train]" in a checkout installs both packages'
    )

sys.exit(main())
