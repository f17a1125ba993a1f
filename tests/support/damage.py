"""Files that are damaged by chance: any bytes changed or cut off, any value anywhere."""

from hypothesis import strategies as st

# Values of every kind that a file could hold in the place of any other.
ANY_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
CHANCE = st.randoms(use_true_random=False)


def damaged(content, chance):
    """Bytes of which a few are others, and of which the end may be missing."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randint(1, len(changed))])


def put_anywhere(value, whole, chance):
    """Put a value in the place of any part of lists and dictionaries in one another."""
    while True:
        key = chance.choice(list(whole) if isinstance(whole, dict) else range(len(whole)))
        part = whole[key]
        if not (isinstance(part, (dict, list)) and part) or chance.random() < 0.25:
            whole[key] = value
            return
        whole = part
