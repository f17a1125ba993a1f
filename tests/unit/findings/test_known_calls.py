"""Lines whose text says why they are slow."""

import pytest

from profstack.findings.known_calls import KNOWN_CALLS, hint
from tests.support.findings import TRAIN, report_of


def told(*lines, at=1, once=False):
    """The hint on a line of a file that is these lines."""
    report = report_of()
    report["sources"] = [{"file": TRAIN, "text": "\n".join(lines)}]
    return hint(report, {"file": TRAIN, "line": at}, once=once)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("for _, row in frame.iterrows():", "(for _, row in frame.iterrows():): compute with"),
        ("y = frame.apply(one, axis=1)", "apply(axis=1) calls Python"),
        ("y = frame.apply(one, axis='columns')", "apply(axis=1) calls Python"),
        ("self.seen = np.append(self.seen, x)", "What grows is copied as a whole"),
        ("now = copy.deepcopy(model).state_dict()", "deepcopy copies all"),
        ("at = rng.choice(n, p=shares)", "go through all"),
        ("at = np.random.choice(n, 9, replace=False)", "puts all of them in a new order"),
        ("at = random.choices(rows, weights=w)", "go through all"),
        ("shares = known / known.sum()", "All of `known` is summed"),
        ("p = self.rank / np.sum(self.rank)", "All of `self.rank` is summed"),
        ("self.log('f1', self.f1.compute())", "compute() goes through"),
        ("x = train_metrics['a'].compute()", "compute() goes through"),
        ("np.histogram(x, bins=9)", "A histogram"),
        ("image = Image.open(path)", "decoded again"),
        ("with open(path) as file:", "A file is read"),
        ("table = pd.read_csv(path)", "A file is read"),
        ("k = torch.linalg.inv(a)", "factorised"),
        ("fig = plt.figure()", "A picture is drawn"),
        ("time.sleep(0.1)", "waits on purpose"),
        ("at = self.words.index(word)", "`self.words` is searched from its start"),
    ],
)
def test_what_a_line_says(line, words):
    found = told(line)
    assert words.replace("go through all", "goes through all") in found
    assert found.endswith(" ")


@pytest.mark.parametrize(
    "line",
    [
        *("x = 1  # deepcopy(model)", "y = frame.apply(one)", "both = torch.cat([x, y])"),
        *("at = rng.choice(n)", "half = x / y.sum()", "self.reopen(path)", "step.compute(x)"),
        *("kept = unknown / known.sum()", "self.open(path)", "", "frame.compute()"),
        *("with open(path, 'wb') as file:", "file = open(path, mode='a')", "x = json.loads(line)"),
        # Different things are joined along another dimension, or once.
        *("at = text.index('a')", "y = x.index_select(0, rows)", "at = Words.index(word)"),
        *("at = operator.index(word)", "at = words.index(word)"),
        "if word not in words:",
        *("self.x = torch.cat([self.x, y], dim=1)", "self.x = torch.cat((self.x, y), -1)"),
        *("seen = torch.cat([seen, x])", "self.xs = torch.cat([self.x, y])"),
    ],
)
def test_what_it_does_not_say(line):
    assert told(line) == ""


def test_a_loop_around_the_line_says_it_too():
    lines = ["def f(frame):", "    for row in frame.itertuples():", "        x = row.a", "y = 1"]
    assert told(*lines, at=3) == told(*lines, at=1) != ""
    assert told(*lines, at=4) == ""
    # What is once in a function need not be where its time goes.
    assert told("def f():", "    a = deepcopy(b)", "    x = 1", at=3) == ""
    assert told("x = 1", at=7) == ""
    assert hint(report_of(), {"file": TRAIN, "line": 1}) == ""


def test_what_grows_in_a_loop_and_what_is_done_once():
    loop = [
        "def f(rows):",
        "    for x in rows:",
        "        y = x + 1",
        "        a = np.append(a, x)",
    ]
    assert told(*loop, at=3).startswith("What grows is copied as a whole each time (a = np.append")
    assert told("def f(a, x):", "    a = np.append(a, x)", "    y = 1", at=3) == ""
    # What is done once need not be slow each time; a loop in it is one all the same.
    assert told("rows = pd.read_csv(path)", once=True) == ""
    assert told("for row in frame.iterrows():", once=True) != ""


def test_what_is_sought_in_a_list_that_grows():
    lines = ["def f(words):", "    for w in words:", "        if w not in a.known: {}", ""]
    for call, is_said in (("a.known.append(w)", True), ("a.known.add(w)", False)):
        for body in (lines, [*lines[:2], "        if w not in a.known:", f"            {call}"]):
            found = told(*(each.format(call) for each in body), at=2, once=True)
            assert ("in the list `a.known` from its start" in found) is is_said
    other = ["def f(w):", "    if w not in known:", "        other.append(w)"]
    assert told(*other, at=2) == ""


def test_a_long_line_is_cut():
    line = f"for {'a' * 80} in frame.iterrows():"
    assert f"({line[:60]}...)" in told(line)
    assert len({known.advice for known in KNOWN_CALLS}) == len(KNOWN_CALLS)
