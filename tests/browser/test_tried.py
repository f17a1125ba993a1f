"""tried.js: what changes gained that were tried, and the edits that keep it."""

from tests.support.lab import changed, run_page
from tests.support.trials import DIFF, tried

RUN = run_page()


def test_changes_that_were_tried_stand_with_their_verdicts_and_edits(lab):
    lab.draw(changed(RUN, facts__tried=tried()), "T.tried.drawTried", "#tried")
    (first, *rows) = lab.tables("overview", 9)["tried-table"][1:]
    assert first.split("|")[:5] == ["workers + fused", "gains", "20.0 ms", "12.0 ms", "50 %"]
    names = [row.split("|")[0] for row in rows]
    assert names == ["workers=2", "eval-mode", "set-to-none", "compile"]
    assert [row.split("|")[1] for row in rows] == ["gains", "gains", "same", "breaks"]
    assert "no compiler (exit code 1)" in rows[-1]
    # The edit of the change that is recommended, and of no other.
    assert lab.all("#tried-edits pre") == [DIFF]
    (note,) = lab.all("#tried-note")
    assert note.startswith("5 changes, each in fresh processes of 60 steps")
    assert ("25 %" in note, "differ already" in note) == (True, False)
    differing = tried() | {"plain_results": "digits", "floor": None, "trials": []}
    lab.draw(changed(RUN, facts__tried=differing), "T.tried.drawTried", "#tried")
    (note,) = lab.all("#tried-note")
    assert note.startswith("1 change, each")
    assert ("no less" in note, "differ already" in note) == (False, True)
    lab.draw(changed(RUN, facts__tried=None), "T.tried.drawTried", "#tried")
    assert lab.all("#tried") == []
