"""`python -m reproduction figures` as a user types it."""

import json

import pytest

from reproduction.__main__ import main


def test_claims_of_an_empty_folder_are_listed_and_not_judged(tmp_path, capsys) -> None:
    assert main(["claims", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "claims.md").read_text()
    assert "KFL above FedRep" in text and "not run" in text
    shown = capsys.readouterr().out
    assert "KFL above FedRep" in shown and "python -m reproduction figures all makes them" in shown
    assert "| --- |" not in shown  # a table for people; the file is the one for documents


def test_claims_can_be_searched_and_read_by_programs(tmp_path, capsys) -> None:
    words = ["claims", "--out", str(tmp_path)]
    assert main([*words, "--only", "FIG2A fedrep", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found and all("fig2a" in one["command"] and "fedrep" in one["claim"].lower() for one in found)
    assert main([*words, "--only", "holds"]) == 0
    shown = capsys.readouterr().out
    assert "KFL uploads 640 numbers per round" in shown and "cannot be judged" not in shown
    assert main([*words, "--only", "nonsense"]) == 2
    assert "only is 'nonsense'" in capsys.readouterr().err


def test_the_list_needs_no_data(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KFL_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["figures", "list", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "fig4d-m3" in shown and "each run once" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig7"], "fig2a"),
        (["list", "fig2a"], "alone"),
        (["fig2a", "--shard", "3/2"], "such as 2/4"),
    ],
)
def test_bad_input_is_one_sentence(words, said, tmp_path, capsys) -> None:
    assert main(["figures", *words, "--out", str(tmp_path)]) == 2
    problem = capsys.readouterr().err
    assert said in problem and "Traceback" not in problem


def test_without_data_it_says_how_to_get_it(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KFL_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("KFL_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["figures", "fig2c", "--quick", "--out", str(tmp_path)]) == 2
    assert "kfl data download" in capsys.readouterr().err
