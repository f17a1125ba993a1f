"""One process of `profstack bench`: what is refused before anything is timed."""

import pytest
import torch

from profstack.bench import run as module
from profstack.bench.batch_trial import device_kind
from profstack.bench.run import BenchOptions, BenchRun
from profstack.bench.subject import Request, Subject, of_model
from profstack.errors import UsageError
from profstack.stats.clock import Clock
from tests.support.commands import fails


def test_what_is_refused_or_fails_and_a_models_mode(monkeypatch):
    model = of_model(torch.nn.Linear(2, 2), (torch.ones(1, 2),), request=Request("a.py:b"))
    step = Subject("step", lambda: pytest.fail("it was called"))
    for subject, dtypes, said in ((step, [], "needs other batch sizes"), (model, ["f9"], "f9")):
        options = BenchOptions(throughput=True, dtypes=dtypes)
        with pytest.raises(UsageError, match=said):
            BenchRun(subject, options, Clock()).check()
    for training, device in ((True, "cpu"), (False, "meta")):
        model = torch.nn.Linear(2, 2, device=device).train(training)
        subject = of_model(model, (torch.ones(1, 2),))
        assert (subject.training, device_kind(subject)) == (training, device)
    kept = []
    run = BenchRun(Subject("a", int), BenchOptions(mistakes=True), Clock(), keep=kept.append)
    for error, said in ((ValueError("one\ntwo"), "ValueError: one"), (OSError(), "OSError: no m")):
        monkeypatch.setattr(module, "mistakes", fails(error))
        run.parts()
        (problem,) = kept[-1]["part_problems"][-1:]
        assert problem.startswith(f"--mistakes gave nothing: {said}")
    assert len(kept[-1]["part_problems"]) == 2
