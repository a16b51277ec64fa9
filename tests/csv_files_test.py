"""CSV files: rows with any delimiter, and what other files are."""

import csv
import gzip

import pytest

from tff_algos import csv_files


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "people.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_separators_in_quotes_separate_no_cells(write):
    rows, _ = csv_files.read(write('"a, b, c, d";"label"\n0;x\n1;y'))
    assert rows == [["a, b, c, d", "label"], ["0", "x"], ["1", "y"]]


def test_the_first_line_may_be_blank(write):
    rows, lines = csv_files.read(write("\n \na;b, c;label\n1;2;x\n"))
    assert rows == [["a", "b, c", "label"], ["1", "2", "x"]] and lines == [3, 4]


def test_cells_may_be_long_texts(write):
    limit = csv.field_size_limit()
    rows, _ = csv_files.read(write(f"notes,age\n{'x' * (limit + 1)},3"))
    assert len(rows[1][0]) == limit + 1
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_quote_within_a_cell_is_a_part_of_it(write, delimiter):
    text = 'height 5";weight, kg;label\n1;2;3'.replace(";", delimiter)
    rows, _ = csv_files.read(write(text))
    assert rows == [['height 5"', "weight, kg", "label"], ["1", "2", "3"]]


def test_spaces_before_quotes_are_no_part_of_a_cell(write):
    text = '"name", "age", "what"\n"Smith, John", 31, "yes"\n'
    rows, _ = csv_files.read(write(text))
    assert rows == [["name", "age", "what"], ["Smith, John", "31", "yes"]]


@pytest.mark.parametrize("name", ["b, c", 'b ""x, y"" c, d'])
def test_what_is_in_quotes_separates_nothing(write, name):
    rows, _ = csv_files.read(write(f'a;"{name}"\n1;2\n'))
    assert rows == [["a", name.replace('""', '"')], ["1", "2"]]


def test_rows_have_the_lines_that_an_editor_shows(write):
    rows, lines = csv_files.read(write('a,y\r\n\r\n"1\r\n1",0\r\n2,1\r\n\r\n3,.5'))
    assert rows == [["a", "y"], ["1\r\n1", "0"], ["2", "1"], ["3", ".5"]]
    assert lines == [1, 3, 5, 7]


REFUSED = [
    ("", "people.csv is empty"),
    ("\n\n", "people.csv is empty"),
    (b"a,\xdcb\n1,2\n", r"it is not UTF-8 \(.* byte 0xdc\); save it as UTF-8"),
    (
        gzip.compress(b"a,b\n1,2\n", mtime=0),
        r"people.csv cannot be read as CSV: it is compressed \(gzip\): unpack it",
    ),
    (b"PK\x03\x04\x14\x00\x00\x08", r"it is compressed \(ZIP, .*\): unpack it or"),
]
REFUSED_BELOW = [
    ("a,b\n1,2\n1\n", "line 3 has 1 cells, expected 2"),
    ('a,b\n"1\n2",3\n4\n', "line 4 has 1 cells"),
    # A stray quote would swallow the rows that follow.
    ('a,b\n1,"5 inch\n2,ok\n3,ok\n', "line 4: unexpected end of data. Cells with"),
    ('a,b\n1,"5 inch\n2,ok\n3,"6 inch\n', "line 4: ',' expected after '\"'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED + REFUSED_BELOW)
def test_other_files_are_refused(text, message, write):
    with pytest.raises(csv_files.CsvError, match=message):
        csv_files.read(write(text))


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_other_files_have_no_column_names(text, message, write):
    with pytest.raises(csv_files.CsvError, match=message):
        csv_files.column_names(write(text))


@pytest.mark.parametrize("text", [text for text, _ in REFUSED_BELOW])
def test_column_names_are_those_of_the_first_line_alone(text, write):
    assert csv_files.column_names(write(text)) == ["a", "b"]


def test_column_names_have_any_delimiter_and_no_byte_order_mark(write):
    text = '\ufeffage ; "ill, or not"\n1;2'
    assert csv_files.column_names(write(text)) == ["age", "ill, or not"]


def test_pk_may_name_a_column(write):
    assert csv_files.column_names(write("PK,y\n1,2\n")) == ["PK", "y"]


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        csv_files.CsvError, match="none.csv cannot be read as CSV: .*No"
    ):
        csv_files.read(tmp_path / "none.csv")
