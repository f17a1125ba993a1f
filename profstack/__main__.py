"""`python -m profstack`: the same as the `profstack` command."""

from __future__ import annotations

import sys

from profstack.commands import main

sys.exit(main())
