"""Mask secrets on command lines and the home folder in paths, and list the software in use.

Pages are sent to people, so every argument list and every path passes through here before it is
shown or written. Rather mask one value too many than show a secret.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

MASK = "***"

# A name is split into its words; `--hf-token`, `api_key`, `auth.token` and `APIKey` are secrets,
# `--tokenizer` and `--monkey` are not.
_SECRET_WORDS = frozenset(
    "apikey credential key passphrase passwd password pwd secret token".split()  # noqa: SIM905
)
# `--max-tokens 128` and `--key-dim 64` are the commonest options of language models.
_COUNTABLE_WORDS = frozenset(("key", "token"))
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER = re.compile(r"-?[0-9]{1,7}(\.[0-9]+)?")

_NAME = r"[A-Za-z_][\w.\-]*"
# The whole argument is `name=value`, as in `--token=abc def`, `token=abc`, `+auth.token=abc`.
_ASSIGNMENT = re.compile(rf"(?s)([+\-]*)({_NAME})=(.*)")
# Inside a longer argument: `?token=abc`, `{"password": "abc"}`, `api_key = 'abc'`.
_INNER_NAME = re.compile(rf"""({_NAME})["']?\s*[=:]\s*""")
_INNER_VALUE = re.compile(r"""(["'])(.*?)\1|([^\s&,;"'(){}\[\]]+)""")
_BEARER = re.compile(r"\b(Bearer|Basic) +\S+")
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
# Shapes that the issuers of tokens gave them, so that they can be recognised anywhere.
_TOKEN_SHAPES = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|AIza|eyJ)[\w\-.]{16,}"
)


def presentable_argv(argv: list[str]) -> list[str]:
    """Return an argument list to be shown: secrets masked, paths relative to home."""
    return [home_relative(argument) for argument in mask_secrets(argv)]


def mask_secrets(argv: list[str]) -> list[str]:
    """Return the arguments with `***` in place of every value whose name sounds like a secret."""
    shown = []
    pending = ""
    for argument in argv:
        if pending and not _is_option(argument):
            shown.append(argument if _is_harmless(pending, argument) else MASK)
            # `--api-keys a b` takes several values, `--api-key a` one.
            pending = pending if pending.endswith("s") else ""
            continue
        shown.append(_mask_one(argument))
        is_name = _is_option(argument) and "=" not in argument
        pending = argument.lstrip("-") if is_name and _is_secret(argument.lstrip("-")) else ""
    return shown


def home_relative(text: str) -> str:
    """Return the text with `~` in place of the home folder, wherever a path begins with it."""
    home = os.path.expanduser("~").rstrip(os.sep)
    if not home or home == "~" or home not in text:
        return text
    return _beginning(home).sub(lambda _: "~", text)


@cache
def _beginning(home: str) -> re.Pattern[str]:
    """Return the pattern of a path's beginning in the home folder."""
    return re.compile(rf"(?<![\w./\\-]){re.escape(home)}(?=$|[^\w.-])")


def _is_option(argument: str) -> bool:
    return len(argument) > 1 and argument.startswith("-")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _is_secret(name: str) -> bool:
    """Return whether one of the name's words, singular or plural, sounds like a secret."""
    return any(_secret_word(word) for word in _words(name))


def _secret_word(word: str) -> str | None:
    """Return the kind of secret that a word means; `hftoken` and `tokens` are both a `token`."""
    singular = word.removesuffix("s")
    for secret in _SECRET_WORDS:
        # `key` ends too many words (monkey, turkey) to be looked for inside one.
        if secret in (word, singular) or (secret != "key" and singular.endswith(secret)):
            return secret
    return None


def _is_harmless(name: str, value: str) -> bool:
    """Return whether the value is a plain number of tokens or keys."""
    kinds = {_secret_word(word) for word in _words(name)} - {None}
    return kinds <= _COUNTABLE_WORDS and _NUMBER.fullmatch(value) is not None


def _mask_one(argument: str) -> str:
    """Return one argument with its own secrets masked."""
    whole = _ASSIGNMENT.fullmatch(argument)
    if whole and _is_secret(whole[2]):
        return argument if _is_harmless(whole[2], whole[3]) else f"{whole[1]}{whole[2]}={MASK}"
    masked = _USER_IN_URL.sub(f"{MASK}@", argument)
    masked = _BEARER.sub(rf"\1 {MASK}", masked)
    return _TOKEN_SHAPES.sub(MASK, _mask_inner(masked))


def _mask_inner(argument: str) -> str:
    """Return an argument with assignments in it, the values of secret names masked."""
    parts = []
    done = 0
    for name in _INNER_NAME.finditer(argument):
        value = _INNER_VALUE.match(argument, name.end())
        if name.start() < done or value is None or not _is_secret(name[1]):
            continue
        quote, quoted, bare = value.groups()
        if _is_harmless(name[1], quoted or bare or ""):
            continue
        parts += [argument[done : name.end()], quote or "", MASK, quote or ""]
        done = value.end()
    return "".join(parts) + argument[done:]


# -- the software of a run: versions of packages, and the script's commit ----

# Packages whose version may explain a number on the page.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "triton", "numpy"),
    *("transformers", "accelerate", "datasets", "diffusers"),
    *("flash-attn", "lightning", "pytorch-lightning", "timm"),
    *("nvtx", "memory-profiler", "flops-profiler"),
)


def package_version(name: str) -> str | None:
    """Return the version of an installed package, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {name: package_version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


def ask_git(folder: str | os.PathLike[str], *arguments: str, timeout_s: float = 2.0) -> str | None:
    """Return what a git command prints in `folder`; None where it fails or takes too long."""
    import subprocess

    # Take no lock and start no file monitor: nothing may be left behind.
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", os.fspath(folder)]
    try:
        answer = subprocess.run(
            [*git, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def commit_facts(folder: str | os.PathLike[str]) -> dict[str, object]:
    """Return the git commit of `folder`, and whether tracked files differ from it."""
    # Spare starting git outside of every repository.
    here = Path(os.path.realpath(folder))
    inside = any((each / ".git").exists() for each in (here, *here.parents))
    commit = ask_git(folder, "rev-parse", "HEAD") if inside else None
    if commit is None:
        return {"commit": None, "changed": None}
    changes = ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "changed": None if changes is None else bool(changes)}
