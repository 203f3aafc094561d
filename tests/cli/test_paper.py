"""`kfl paper` as a user types it."""

import pytest

from kfl.cli.main import main


def test_claims_of_an_empty_folder_are_listed_and_not_judged(tmp_path, capsys) -> None:
    assert main(["paper", "claims", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "claims.md").read_text()
    assert "KFL above FedRep" in text and "not run" in text
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig7"], "fig2a"),
        (["list", "claims"], "alone"),
        (["fig2a", "--shard", "3/2"], "such as 2/4"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, capsys) -> None:
    assert main(["paper", *words, "--out", str(tmp_path)]) == 2
    problem = capsys.readouterr().err
    assert said in problem and "Traceback" not in problem


def test_without_data_it_says_how_to_get_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KFL_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["paper", "fig2c", "--quick", "--out", str(tmp_path)]) == 2
    assert "kfl data download" in capsys.readouterr().err
