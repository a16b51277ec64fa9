"""Adult's files: features of two people by hand, and what is wrong is named."""

import numpy as np
import pytest

from tasks import adult, adult_file
from tasks.task import TaskError
from tests.testing.adult_people import JANE, JOHN, load, write


class TestFeatures:
    def test_are_the_categories_in_the_order_of_their_description(self):
        sizes = [len(categories) for categories in adult_file.CATEGORIES.values()]
        assert sizes == [8, 16, 7, 14, 6, 5, 2, 41]
        assert adult_file.NUM_FEATURES == 99
        numbers = [
            adult_file.feature(attribute, category)
            for attribute, categories in adult_file.CATEGORIES.items()
            for category in categories
        ]
        assert numbers == list(range(99))
        assert adult.DOCTORATE == 21

    def test_of_two_people_by_hand(self, tmp_path):
        write(tmp_path)
        for name in ("adult.data", "adult.test"):
            features, labels = adult_file.read(str(tmp_path / name))
            assert features.dtype == np.uint8 and features.shape == (2, 99)
            assert labels.dtype == np.int32 and labels.tolist() == [1, 0]
            jane, john = (np.flatnonzero(row).tolist() for row in features)
            assert jane == [5, 21, 26, 36, 48, 51, 56, 58]
            # Neither where he works nor what he does is known.
            assert john == [10, 25, 46, 55, 57, 98]


class TestBadFiles:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (JANE[:-20], "line 2 has 14 columns, not 15"),
            (f"{JANE}, 3", "line 2 has 16 columns, not 15"),
            (
                JANE.replace("Doctorate", "PhD"),
                "the education in line 2 is 'PhD', not one of Bachelors, .*, Doctorate",
            ),
            (JANE.replace("Female", "F"), r"sex in line 2 is 'F', .* Female, Male, \?"),
            (JANE[:-2], "the income in line 2 is '>5', not one of <=50K, >50K"),
        ],
    )
    @pytest.mark.parametrize("data", ["auto", "tff"])
    def test_a_line_that_is_no_person_is_named(self, line, problem, data, tmp_path):
        write(tmp_path, train=(JOHN, line))
        with pytest.raises(TaskError, match=problem) as error:
            load(tmp_path, data)
        message = str(error.value)
        path = tmp_path / "adult.data"
        assert message.startswith(f"{path} is not a file of UCI's Adult: ")
        assert "--data=tff" in message and "--data=generated" in message
        assert "\n" not in message

    @pytest.mark.parametrize(
        ("spoil", "problem"),
        [
            (lambda path: path.write_bytes(b""), "it has no lines of people"),
            (lambda path: path.write_text("|1x3 Cross validator\n\n"), "no lines"),
            (lambda path: path.write_text("<html>no</html>"), "line 1 has 1 columns"),
            (lambda path: path.write_bytes(b"\xff\xfe"), "can't decode"),
            (lambda path: path.unlink() or path.mkdir(), "Is a directory"),
        ],
    )
    def test_what_is_no_such_file_is_named(self, spoil, problem, tmp_path):
        path = write(tmp_path) / "adult.test"
        spoil(path)
        with pytest.raises(TaskError, match=f"adult.test is not a file .*{problem}"):
            load(tmp_path)

    def test_a_test_file_without_a_label_of_the_training_file(self, tmp_path):
        write(tmp_path, test=(JANE,))
        with pytest.raises(TaskError, match="adult.test has no income <=50K, which"):
            load(tmp_path)

    def test_no_doctorate(self, tmp_path):
        poorer = JANE.replace("Doctorate", "Masters")
        write(tmp_path, train=(poorer, JOHN))
        with pytest.raises(TaskError, match="phd: no training example .* person with"):
            load(tmp_path)
        assert len(load(tmp_path, partition="iid:2").train_client_ids) == 2

    @pytest.mark.parametrize("partition", ["phd", "phd_off_by_one"])
    def test_no_doctorate_names_the_partition(self, partition, tmp_path):
        write(tmp_path, train=(JOHN, JOHN))
        with pytest.raises(TaskError, match=f"^--partition={partition}: no training"):
            load(tmp_path, partition=partition)

    def test_four_fifths_of_one_person(self, tmp_path):
        write(tmp_path, train=(JANE, JANE, JOHN))
        message = "--partition=phd_off_by_one takes four fifths .* a single one; use"
        with pytest.raises(TaskError, match=message):
            load(tmp_path, partition="phd_off_by_one")
        write(tmp_path, train=(JANE, JANE, JOHN, JOHN))
        task = load(tmp_path, partition="phd_off_by_one")
        for client_id in ("phd", "non_phd"):
            assert len(task.examples(client_id, "train")[1]) == 1

    def test_a_long_category_is_shortened(self, tmp_path):
        write(tmp_path, train=(JANE.replace("Doctorate", "D" * 9000), JOHN))
        with pytest.raises(
            TaskError, match=r"D\.\.\. \(9002 characters\), not"
        ) as error:
            load(tmp_path)
        assert len(str(error.value)) < 900

    def test_nothing_but_doctorates(self, tmp_path):
        poorer = JANE.replace(">50K", "<=50K")
        write(tmp_path, test=(JANE, poorer))
        with pytest.raises(TaskError, match="phd: no test example .* person without"):
            load(tmp_path)
