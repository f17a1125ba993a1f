"""Plain values of a pickle without loading it: the same values, and one error for all else."""

import pickle
import pickletools
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profstack.readers import plain_pickle
from profstack.readers.plain_pickle import PickleError, read_plain
from tests.support.damage import CHANCE, damaged
from tests.support.tables import cases

_SCALARS = st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80)
_SCALARS |= st.floats(allow_nan=False) | st.text(st.characters(), max_size=300)


def _nested(scalars, keys, sets):
    """Values of every plain kind, inside one another."""
    members = st.sets(keys, max_size=3) | st.frozensets(keys, max_size=3) if sets else st.nothing()
    return st.recursive(
        scalars | members,
        lambda inner: (
            st.lists(inner, max_size=5)
            | st.lists(inner, max_size=5).map(tuple)
            | st.dictionaries(keys, inner, max_size=5)
            # The same value twice, by the memo.
            | inner.map(lambda value: [value, (value, value)])
        ),
        max_leaves=25,
    )


# What each protocol writes without naming a class.
_BYTES = st.binary(max_size=300)
_BY_PROTOCOL = {
    **dict.fromkeys((0, 1, 2), (_SCALARS, _SCALARS | st.tuples(_SCALARS, _SCALARS), False)),
    3: (_SCALARS | _BYTES, _SCALARS | _BYTES, False),
    4: (_SCALARS | _BYTES, _SCALARS | _BYTES, True),
    5: (_SCALARS | _BYTES | _BYTES.map(bytearray), _SCALARS | _BYTES, True),
}
_PICKLES = st.sampled_from(sorted(_BY_PROTOCOL)).flatmap(
    lambda protocol: st.tuples(_nested(*_BY_PROTOCOL[protocol]), st.just(protocol))
)


@given(_PICKLES)
def test_every_plain_value_is_read_as_pickle_loads_it(made):
    value, protocol = made
    data = pickle.dumps(value, protocol)
    for written in (data, pickletools.optimize(data)):
        read = read_plain(written)
        assert read == pickle.loads(written) == value
        assert repr(read) == repr(pickle.loads(written))


@given(_PICKLES, CHANCE)
def test_damaged_bytes_are_read_or_end_in_the_one_error(made, chance):
    with suppress(PickleError):
        read_plain(damaged(pickle.dumps(*made), chance))


class _Calls:
    """Would call a function where it is loaded."""

    def __reduce__(self):
        return print, ("called",)


class _Plain:
    pass


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [_Calls(), _Plain(), _Plain, print, 1j, range(3)])
def test_nothing_is_imported_called_or_built(value, protocol, capsys):
    with pytest.raises(PickleError, match=r"^it holds more than plain values: opcode [A-Z_0-9]+"):
        read_plain(pickle.dumps([1, value], protocol))
    assert capsys.readouterr().out == ""


_KNOWN = {opcode[0] for opcode in plain_pickle.KNOWN}


@pytest.mark.parametrize("code", sorted(set(range(256)) - _KNOWN))
def test_every_other_opcode_ends_it(code):
    named = {ord(each.code): each.name for each in pickletools.opcodes}
    words = f"opcode {named[code]}" if code in named else f"byte {code:#04x}"
    with pytest.raises(PickleError, match=words):
        read_plain(b"\x80\x04" + bytes([code]) + bytes(64) + b".")


def test_a_value_that_is_shared_is_read_once_also_in_itself():
    # Each list holds the one before it twice: small to write, without end to walk.
    value = ["x"]
    for _ in range(200):
        value = [value, value]
    read = read_plain(pickle.dumps(value))
    for _ in range(200):
        assert read[0] is read[1]
        read = read[0]
    assert read == ["x"]
    value.append(value)
    read = read_plain(pickle.dumps(value))
    assert read[2] is read


def test_a_deep_nesting_is_read_without_recursion():
    read = read_plain(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    depth = 0
    while read:
        read, depth = read[0], depth + 1
    assert depth == 99_999


_TWICE_KEY = b"\x80\x04})" + b"\x942\x86" * 60 + b"K\x01s."


@cases(
    "data words",
    (_TWICE_KEY, "is no plain value"),
    (b"\x80\x09N.", "protocol 9"),
    (b"\x80\x04K\x01a.", "a value is missing"),
    (b"\x80\x04K\x01K\x02a.", "appended to no list"),
    (b"\x80\x04}(K\x01u.", "no part of a dictionary"),
    (b"\x80\x04](K\x01\x90.", "to no set"),
    (b"\x80\x04h\x05.", "a value is missing"),
    (b"\x80\x04I" + b"9" * 5000 + b"\n.", "more than 1,000 characters"),
    (b"\x80\x04\x8b\xff\xff\xff\xff.", "negative"),
    (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fab", "ends early"),
    (b"", "ends early"),
)
def test_what_is_damaged_says_where(data, words):
    with pytest.raises(PickleError, match=words):
        read_plain(data)


def test_values_are_bounded_in_memory():
    for data in (pickle.dumps([[] for _ in range(100)]), pickle.dumps("x" * 10_000)):
        assert read_plain(data, most_bytes=30_000)
        with pytest.raises(PickleError, match="too much memory"):
            read_plain(data, most_bytes=9_000)


def test_keys_whose_hashes_can_meet_are_few(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_OTHER_KEYS", 50)
    modulus = (1 << 61) - 1
    for count, fits in ((50, True), (51, False)):
        for made in ({number * modulus: 0 for number in range(count)}, set(range(count))):
            data = pickle.dumps(made, 4)
            if fits:
                assert read_plain(data) == made
            else:
                with pytest.raises(PickleError, match="more than 50 of its keys"):
                    read_plain(data)
    # Texts have hashes that nobody outside the process knows.
    texts = {str(number): number for number in range(500)}
    assert read_plain(pickle.dumps(texts)) == texts
    with pytest.raises(PickleError, match="no plain value"):
        read_plain(pickle.dumps({1 << 2000: 1}))
