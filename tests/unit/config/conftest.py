"""Loading as `check` does it: files in an empty folder, and the lines that would be printed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.load import Loaded, load_config, load_policy
from gateway.edge.keys import key_problem
from gateway.policy.decide import Policy

Load = Callable[..., list[str] | Loaded]
Check = Callable[[str], list[str] | Policy]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABSENT", raising=False)
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Load:
    """Loads a configuration, with the policy files that it names, and gives what it is or what is printed."""

    def run(config: str | bytes, **policies: str) -> list[str] | Loaded:
        for name, text in policies.items():
            Path(f"{name}.toml").write_text(text)
        Path("config.toml").write_bytes(config if isinstance(config, bytes) else config.encode())
        loaded = load_config(Path("config.toml"), key_problem)
        return [str(problem) for problem in loaded] if isinstance(loaded, list) else loaded

    return run


@pytest.fixture
def check(folder: Path) -> Check:
    """Loads one policy file."""

    def run(policy: str) -> list[str] | Policy:
        Path("p.toml").write_text(policy)
        loaded = load_policy(Path("p.toml"))
        return [str(problem) for problem in loaded] if isinstance(loaded, list) else loaded

    return run
