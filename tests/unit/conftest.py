"""What the unit tests share: a command as a program sees it."""

import json
import sys
from dataclasses import dataclass

import pytest

from tpdpdash import cli


@dataclass
class Answer:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def document(self):
        """stdout as the JSON that it must be."""
        return json.loads(self.out)


@pytest.fixture
def tpdpdash(monkeypatch, capsys):
    """Run the console script's entry in this process."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tpdpdash", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Answer(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return run
