"""The wrapped tools, one file each; imported as `profstack.wrappers` and under no other name."""

if __name__ != "profstack.wrappers":
    raise ImportError(
        f"imported as {__name__!r}: write 'import profstack.wrappers', this package has one name"
    )
