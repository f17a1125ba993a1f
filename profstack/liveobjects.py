"""What is alive, by class, found without being seen by any other thread.

The garbage collector also lists tuples that another thread is still filling. CPython fills a tuple
from a generator in place, and raises SystemError in that thread as soon as somebody else holds the
tuple. So nothing here may hold the list while another thread can run: the interpreter's lock is
let go between bytecodes only, and the list lives and dies within one call of C code.
"""

from __future__ import annotations

import gc
from itertools import chain, compress, starmap
from typing import Any


def instances_of(*bases: type) -> list[Any]:
    """Live objects of these classes and their subclasses, as the collector lists them.

    No object is asked for anything: `isinstance` would ask for `__class__`, which some answer with
    a warning.
    """
    # By identity: a class of the script's may say itself what it equals.
    wanted = set(map(id, _with_subclasses(bases)))
    every: list[Any] = []
    # All three happen while `list` draws from them: what is alive is noted, gone through by two
    # iterators at once, and forgotten.
    note = map(every.extend, map(gc.get_objects, (None,)))
    found = compress(iter(every), map(wanted.__contains__, map(id, map(type, iter(every)))))
    forget = starmap(every.clear, ((),))
    return list(chain(filter(None, note), found, filter(None, forget)))


def _with_subclasses(bases: tuple[type, ...]) -> list[type]:
    found: dict[int, type] = {}
    left = list(bases)
    while left:
        each = left.pop()
        if id(each) not in found:
            found[id(each)] = each
            left += type.__subclasses__(each)
    return list(found.values())
