"""A user's own start-up module, which must still be run, and be found under its own name."""

import builtins

builtins.started_by_site = __file__
