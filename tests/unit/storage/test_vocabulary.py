"""Words that are written into a recording and read again."""

from profstack.storage.vocabulary import launcher_warning, undefined_profile
from tests.support.processes import raised_by


def test_a_launcher_is_told_how_to_start_profstack():
    torchrun = "torchrun --nproc-per-node N --no-python"
    accelerate = "accelerate launch --no_python"
    for script, command in (
        ("/usr/bin/torchrun", torchrun), ("torch.distributed.launch", torchrun),
        ("accelerate", accelerate), ("accelerate.commands.accelerate_cli", accelerate),
        ("deepspeed.launcher.launch", "deepspeed --no_python"),
    ):  # fmt: skip
        assert f"{command} profstack run --ranks all" in launcher_warning(script)
    assert [launcher_warning(script) for script in ("train.py", "", None)] == [None] * 3


def test_a_name_that_other_tools_define_has_a_remedy(tmp_path):
    assert "`python -m memory_profiler`" in undefined_profile(raised_by(tmp_path))
    # A forgotten import of another `profile` is told by the traceback alone.
    others = [raised_by(tmp_path, text) for text in ("with profile(): pass", "@other\ndef f(): 1")]
    others += [NameError(name="profile"), ImportError(name="profile"), NameError(), None]
    assert [undefined_profile(each) for each in others] == [None] * 6
