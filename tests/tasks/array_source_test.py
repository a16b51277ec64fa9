"""Arrays come from npz files, TFDS, forms of their own or a generator, or one line says why not."""

import pathlib
import zipfile

import attrs
import numpy as np
import pytest
from numpy.lib import format as npy

from tasks import array_source
from tasks.task import TaskError
from tests.testing import toy_arrays
from tests.testing.toy_arrays import generate, options


@pytest.fixture
def data_set():
    return toy_arrays.data_set()


def _save(folder, **changes) -> pathlib.Path:
    path = folder / "toy.npz"
    found = {**toy_arrays.arrays(), **changes}
    np.savez(path, **{key: value for key, value in found.items() if value is not None})
    return path


class TestNpz:
    @pytest.mark.parametrize("data", ["auto", "tff"])
    def test_is_the_real_data_set(self, data, data_set, tmp_path):
        _save(tmp_path)
        source, arrays, notice = array_source.load_arrays(
            data_set, options(tmp_path, data)
        )
        assert source == "tff" and notice is None
        for name, expected in toy_arrays.arrays().items():
            np.testing.assert_array_equal(getattr(arrays, name), expected)
        assert arrays.x_train.dtype == np.uint8 and arrays.y_train.dtype == np.int32

    @pytest.mark.parametrize("dtype", [np.uint8, np.int64])
    def test_may_have_the_shapes_that_keras_gives(self, dtype, data_set, tmp_path):
        found = toy_arrays.arrays()
        _save(
            tmp_path,
            x_train=found["x_train"][..., 0],
            y_test=found["y_test"].astype(dtype)[:, np.newaxis],
            writer_train=np.zeros(60),
        )
        _, arrays, _ = array_source.load_arrays(data_set, options(tmp_path))
        np.testing.assert_array_equal(arrays.x_train, found["x_train"])
        np.testing.assert_array_equal(arrays.y_test, found["y_test"])
        assert arrays.y_test.dtype == np.int32

    def test_colors_need_their_axis(self, data_set, tmp_path):
        colors = attrs.evolve(data_set, image_shape=(28, 28, 3))
        _save(tmp_path, **toy_arrays.arrays(shape=(28, 28)))
        with pytest.raises(TaskError, match=r"\[60, 28, 28\], not \[n, 28, 28, 3\];"):
            array_source.load_arrays(colors, options(tmp_path))

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"y_test": None}, "lacks y_test"),
            ({"x_train": None, "x_test": None}, "lacks x_train, x_test"),
            ({"x_train": np.zeros((60, 28, 28))}, "x_train is float64, not uint8"),
            (
                {"x_train": np.zeros((60, 8, 8, 1), np.uint8)},
                r"\[60, 8, 8, 1\], not \[n, 28, 28, 1\] or \[n, 28, 28\];",
            ),
            ({"x_test": np.zeros((0, 28, 28), np.uint8)}, r"shape \[0, 28, 28\]"),
            ({"x_train": np.uint8(3)}, r"x_train has shape \[\]"),
            ({"y_train": np.zeros(59, int)}, "has 60 examples, y_train has 59"),
            ({"y_train": np.zeros(60)}, "y_train is float64, not integers"),
            ({"y_train": np.zeros((60, 3), int)}, r"\[60, 3\], not \[n\] or \[n, 1\]"),
            ({"y_train": np.uint8(3)}, r"y_train has shape \[\]"),
            ({"y_test": np.full(30, 3)}, r"y_test has label 3, not in \[0, 3\)"),
            ({"y_test": np.full(30, -1)}, "y_test has label -1"),
            ({"y_test": np.zeros(30, int)}, "y_test lacks label 1, which y_train has"),
            ({"y_test": np.full(30, None)}, "cannot be read .*allow_pickle"),
        ],
    )
    @pytest.mark.parametrize("data", ["auto", "tff"])
    def test_what_is_wrong_is_said(self, changes, problem, data, data_set, tmp_path):
        path = _save(tmp_path, **changes)
        with pytest.raises(TaskError, match=problem) as error:
            array_source.load_arrays(data_set, options(tmp_path, data))
        message = str(error.value)
        assert message.startswith(f"{path} is not a toy dataset: ")
        assert "--data=generated" in message and "\n" not in message

    @pytest.mark.parametrize(
        ("spoil", "problem"),
        [
            (lambda path: path.write_bytes(b""), "not a zip file"),
            (lambda path: path.write_bytes(b"<html>no</html>" * 99), "cannot be read"),
            (lambda path: path.write_bytes(path.read_bytes()[:-500]), "cannot be read"),
            (
                lambda path: path.write_bytes(
                    path.read_bytes().replace(bytes(300), bytes(299) + b"x", 1)
                ),
                "Bad CRC-32",
            ),
            (lambda path: path.unlink() or path.mkdir(), "Is a directory"),
            (
                lambda path: np.save(path.open("wb"), np.zeros(3)),
                "one array, not four by name",
            ),
        ],
    )
    def test_a_corrupt_file_is_an_error(self, spoil, problem, data_set, tmp_path):
        path = _save(tmp_path)
        spoil(path)
        with pytest.raises(TaskError, match=f"toy.npz is not a toy .*({problem})"):
            array_source.load_arrays(data_set, options(tmp_path))


def _npy(header: str, num_bytes: int = 60 * 28 * 28) -> bytes:
    """Returns a .npy file whose header is anything."""
    content = f"{header}\n".encode("latin1")
    start = npy.magic(1, 0) + len(content).to_bytes(2, "little")
    return start + content + bytes(num_bytes)


def _declared(shape, descr="'|u1'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


class TestMember:
    """One array of the file, x_train, is damaged."""

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (_npy("{'descr': '|u1', "), "the header of x_train cannot be read"),
            (_npy("'" * 3), "the header of x_train cannot be read"),
            (_npy("[" * 500), "the header of x_train cannot be read"),
            (_npy("1" * 5000), "the header of x_train cannot be read"),
            (_npy("  x: = 3\n y"), "the header of x_train cannot be read"),
            (_npy("\xe9\x00"), "the header of x_train cannot be read"),
            (_npy("{[]: 3}"), "the header of x_train cannot be read"),
            (_npy("{1: 2, 'a': 3}"), "the header of x_train cannot be read"),
            (_npy(_declared("(3,)", "()")), "the header of x_train cannot be read"),
            (_npy(_declared("(3,)", "[(1,)]")), "the header of x_train cannot be read"),
            (b"hello", "the header of x_train cannot be read .*magic"),
            (b"", "the header of x_train cannot be read"),
            (npy.magic(9, 0) + bytes(99), r"version \(9, 0\) of .npy"),
            (
                _npy(_declared("(20000000000, 28, 28)")),
                "x_train has 47040 bytes, not 15680000000000 as its header declares",
            ),
            (_npy(_declared("(10**9,)")), "the header of x_train cannot be read"),
            (_npy(_declared("(-60, 28, 28)")), "bytes, not -47040 as its header"),
            (_npy(_declared("(60, 28, 28)"), 99), "has 99 bytes, not 47040 as its"),
        ],
    )
    def test_that_is_no_array(self, content, problem, data_set, tmp_path):
        path = tmp_path / "toy.npz"
        arrays = {**toy_arrays.arrays()}
        del arrays["x_train"]
        np.savez(path, **arrays)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("x_train.npy", content)
        with pytest.raises(TaskError, match=problem) as error:
            array_source.load_arrays(data_set, options(tmp_path))
        message = str(error.value)
        assert message.startswith(f"{path} is not a toy dataset: ")
        assert message.isprintable() and len(message) < 600

    @pytest.mark.parametrize(
        "compression",
        [
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
            zipfile.ZIP_BZIP2,
            zipfile.ZIP_LZMA,
        ],
    )
    def test_that_is_damaged(self, compression, data_set, tmp_path):
        path = tmp_path / "toy.npz"
        rng = np.random.default_rng(0)
        found = {
            **toy_arrays.arrays(),
            "x_train": rng.integers(0, 9, (60, 28, 28), np.uint8),
        }
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, array in found.items():
                with archive.open(f"{name}.npy", "w") as file:
                    npy.write_array(file, array)
        content = bytearray(path.read_bytes())
        assert len(array_source.load_arrays(data_set, options(tmp_path))[1].y_train)
        for position in range(400, 460):
            content[position] ^= 0x5A
        path.write_bytes(content)
        with pytest.raises(TaskError, match="x_train cannot be read"):
            array_source.load_arrays(data_set, options(tmp_path))

    def test_that_is_encrypted(self, data_set, tmp_path):
        path = _save(tmp_path)
        content = bytearray(path.read_bytes())
        # Bit 0 of the flags, in either header of the first member.
        content[6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(content)
        with pytest.raises(TaskError, match="'x_train.npy' is encrypted"):
            array_source.load_arrays(data_set, options(tmp_path))


class TestGenerated:
    def test_when_nothing_is_there(self, data_set, tmp_path):
        source, arrays, notice = array_source.load_arrays(data_set, options(tmp_path))
        assert source == "generated" and len(arrays.y_train) == 90
        assert notice.startswith(f"--data=auto found no {tmp_path / 'toy.npz'} and no ")
        assert notice.endswith("real dataset; --data=tff downloads the real one.")
        assert not list(tmp_path.iterdir())

    def test_when_it_is_asked_for(self, data_set, tmp_path):
        _save(tmp_path)
        found = array_source.load_arrays(data_set, options(tmp_path, "generated"))
        assert found[0] == "generated" and found[2] is None

    def test_without_a_folder_of_the_data_set_tfds_is_not_asked(
        self, data_set, tmp_path, monkeypatch
    ):
        def refuse(*args):
            raise AssertionError("asked")

        monkeypatch.setattr(array_source, "_builder", refuse)
        assert array_source.load_arrays(data_set, options(tmp_path))[0] == "generated"

    def test_a_data_set_that_tfds_lacks(self, data_set, tmp_path):
        own = attrs.evolve(data_set, tfds_name=None)
        _, _, notice = array_source.load_arrays(own, options(tmp_path))
        assert notice.endswith("not the real dataset.")
        with pytest.raises(TaskError, match="--data=tff: toy cannot be .*put toy.npz"):
            array_source.load_arrays(own, options(tmp_path, "tff"))


class TestOwnForm:
    """A dataset that comes in a file "toy.a", or in one "toy.b"."""

    @pytest.fixture
    def own(self, data_set):
        def read(path):
            size = int(pathlib.Path(path).read_text())
            return array_source.checked(
                path, toy_arrays.arrays(num_train=size), data_set
            )

        def obtain(cache_dir):
            path = pathlib.Path(cache_dir) / "toy.b"
            path.write_text("48")
            return str(path)

        form = array_source.OwnForm(names=("toy.a", "toy.b"), read=read, obtain=obtain)
        return attrs.evolve(data_set, tfds_name=None, own_form=form)

    @pytest.mark.parametrize("data", ["auto", "tff"])
    def test_the_first_file_that_is_there_is_read(self, data, own, tmp_path):
        for name, size in (("toy.b", 33), ("toy.a", 36)):
            (tmp_path / name).write_text(str(size))
            source, arrays, notice = array_source.load_arrays(
                own, options(tmp_path, data)
            )
            assert source == "tff" and notice is None
            assert len(arrays.y_train) == size

    def test_an_npz_file_comes_before_it(self, own, tmp_path):
        (tmp_path / "toy.a").write_text("36")
        _save(tmp_path)
        assert len(array_source.load_arrays(own, options(tmp_path))[1].y_train) == 60

    def test_it_is_downloaded_only_where_that_is_asked_for(self, own, tmp_path):
        source, _, notice = array_source.load_arrays(own, options(tmp_path))
        assert source == "generated" and not list(tmp_path.iterdir())
        for missing in ("toy.npz", "toy.a", "toy.b"):
            assert f"no {missing}" in notice or f"/{missing}" in notice
        assert "tensorflow-datasets" not in notice
        assert notice.endswith("--data=tff downloads the real one.")
        _, arrays, _ = array_source.load_arrays(own, options(tmp_path, "tff"))
        assert len(arrays.y_train) == 48

    def test_without_a_download_of_its_own_tfds_is_asked(
        self, own, tmp_path, monkeypatch
    ):
        def obtain(data_set, folder):
            return generate(num_train=7)

        monkeypatch.setattr(array_source, "_obtain_from_tfds", obtain)
        form = attrs.evolve(own.own_form, obtain=None)
        both = attrs.evolve(own, tfds_name="mnist", own_form=form)
        _, arrays, _ = array_source.load_arrays(both, options(tmp_path, "tff"))
        assert len(arrays.y_train) == 7

    def test_what_is_wrong_names_the_file(self, own, tmp_path):
        (tmp_path / "toy.a").write_text("0")
        message = (
            r"toy.a is not a toy dataset: x_train has shape \[0, .*--data=generated"
        )
        with pytest.raises(TaskError, match=message):
            array_source.load_arrays(own, options(tmp_path))
