"""Paths that a user names: what they are not."""

import os
import pathlib

import pytest

from tff_algos import paths


def test_files_and_folders_are_told_from_each_other(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert paths.fault(file, is_folder=False) is None
    assert paths.fault(tmp_path, is_folder=True) is None
    assert paths.fault(file, is_folder=True) == "it is a file, expected a folder"
    assert paths.fault(tmp_path, is_folder=False) == "it is a folder, expected a file"
    for is_folder, kind in ((False, "file"), (True, "folder")):
        expected = f"it is a pipe or a device, expected a {kind}"
        assert paths.fault(pipe, is_folder=is_folder) == expected
        for missing in (tmp_path / "nothing", file / "below", "a\0b"):
            assert (
                paths.fault(missing, is_folder=is_folder) == f"there is no such {kind}"
            )


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_may_not_be_looked_at_is_said_to_be_so(tmp_path, monkeypatch, is_folder):
    kind = "folder" if is_folder else "file"
    long = paths.fault(tmp_path / ("x" * 300), is_folder=is_folder)
    assert long == f"the {kind} cannot be read: File name too long"

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    found = paths.fault(tmp_path, is_folder=is_folder)
    assert found == f"the {kind} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("runs/lr [0.1]", True), ("a*", True), ("a?/b", True), ("a\\b", True)]
    + [("runs/a-b_c,d=1+2]", False), (pathlib.Path("~/my runs"), False)],
)
def test_patterns_are_paths_that_tensorflow_would_expand(path, expected):
    assert paths.is_pattern(path) == expected


def test_names_are_text_or_are_not():
    assert paths.is_utf8("müll.csv")
    assert not paths.is_utf8(os.fsdecode(b"m\xfcll.csv"))
