"""The wrapped tools, one file each; imported as `profstack.wrappers` and under no other name.

A wrapper imports the leaves, `storage`, `stats`, `layer`, `readers` and its tool, nothing else of
profstack, and does not load torch when it is imported: see `MAY_IMPORT` in tests/test_imports.py.
"""

if __name__ != "profstack.wrappers":
    raise ImportError(
        f"imported as {__name__!r}: write 'import profstack.wrappers', this package has one name"
    )
