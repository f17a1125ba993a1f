"""What is masked before it is shown, and the commit that may be."""

import re

from profstack import privacy
from tests.support.processes import git

# Command lines; what is masked stands in braces.
MASKED = """
--token {abc} // --hf-token={abc} x // --api-key {abc} x // --apiKey {abc} // --hftoken {abc}
-password {1234} // --pwd {12} // --passphrase={open} // password={hunter2} // +auth.token={abc}
WANDB_API_KEY={abc} // --client_secret {abc} // --credentials {a} {b} // --api-keys {a} {b} --n 3
--tokens {abc} // --max-tokens {12345678} // --max-tokens {12k} // --key-password {12}
https://{ann:pw}@host/x?token={abc}&n=3 // --x=a?key={b};secret={c} // --max-tokens -1.5
--num_tokens=1234567 // n?max_tokens=12&api_key={ab} // --tokenizer gpt2 // --monkey bonobo
--use-token --epochs 3 // --secret // --token {abc} def // --token {-} x
"""
SINGLE = {
    "token=a\nb": "token=X",
    '{"password": "a b", "n": 3}': '{"password": "X", "n": 3}',
    "x = 'a'; api_key = 'b c'; f(1)": "x = 'a'; api_key = 'X'; f(1)",
    "Authorization: Bearer abc.d, Basic  ef": "Authorization: Bearer X Basic X",
    "hf_aaaaaaaaaaaaaaa": "hf_aaaaaaaaaaaaaaa",
    "--x=sk-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": "--x=X",
}
STARTS = ("hf_", "sk-", "ghp_", "xoxb-", "AKIA", "eyJ")
SINGLE |= {f"{start}{'a' * 16}": "X" for start in STARTS}


def test_secrets_on_a_command_line_and_inside_one_argument():
    for row in MASKED.strip().replace("\n", " // ").split(" // "):
        given = re.sub(r"[{}]", "", row).split()
        assert privacy.mask_secrets(given) == re.sub(r"{.*?}", "***", row).split()
    for argument, shown in SINGLE.items():
        assert privacy.mask_secrets([argument]) == [shown.replace("X", "***")]


def test_paths_are_shown_relative_to_home(monkeypatch):
    for home, text, shown in (
        ("/home/ann", "/home/ann", "~"), ("/home/ann/", "/home/ann/run/train.py", "~/run/train.py"),
        ("/home/ann", "--data=/home/ann/x:/home/ann/y", "--data=~/x:~/y"),
        ("/home/ann", "/home/ann.old/x", "/home/ann.old/x"),
        ("/home/ann", "/mnt/home/ann/x", "/mnt/home/ann/x"),
        ("/h.me/a", "/home/a/x", "/home/a/x"), ("/", "/data/x", "/data/x"),
    ):  # fmt: skip
        monkeypatch.setenv("HOME", home)
        assert privacy.home_relative(text) == shown
    monkeypatch.setenv("HOME", "/home/ann")
    argv = ["--out", "/home/ann/runs", "--token=/home/ann/secret"]
    assert privacy.presentable_argv(argv) == ["--out", "~/runs", "--token=***"]


def test_commit_of_a_folder(tmp_path):
    nothing = {"commit": None, "changed": None}
    assert privacy.commit_facts(tmp_path) == nothing
    git("init", "-q", cwd=tmp_path)
    assert privacy.commit_facts(tmp_path) == nothing
    (tmp_path / "train.py").write_text("steps = 3\n")
    git("add", ".", cwd=tmp_path)
    git("commit", "-q", "-m", "first", cwd=tmp_path)
    head, inner = git("rev-parse", "HEAD", cwd=tmp_path).strip(), tmp_path / "inner"
    inner.mkdir()
    assert privacy.commit_facts(inner) == {"commit": head, "changed": False}
    (tmp_path / "train.py").write_text("steps = 4\n")
    assert privacy.commit_facts(tmp_path) == {"commit": head, "changed": True}
