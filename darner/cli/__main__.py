"""``python -m darner.cli`` is the command ``darner``."""

import sys

from . import main

sys.exit(main())
