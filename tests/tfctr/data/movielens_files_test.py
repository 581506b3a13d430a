"""The parsers of MovieLens 1M, against lines written by hand."""

import pytest

from tfctr.data.bad_lines import BadLines
from tfctr.data.movielens_files import read_movies, read_ratings, read_users

# Content, and what is wrong with it.
BAD_RATINGS = [
    b"",
    b"1::48::5",
    b"1::48::5::0::0",
    b"1::48::6::0",
    b"1::48::0::0",
    b"1::48::4.5::0",
    b"1::x::5::0",
    b"1::::5::0",
    b"-1::48::5::0",
    b" 1::48::5::0",
    b"1:48:5:0",
    b"1::48::5::0 ",
    b"1234567890123456789::48::5::0",
]


def written(tmp_path, content):
    path = tmp_path / "file.dat"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last_end", [True, False])
def test_ratings_are_read_with_any_line_end(tmp_path, end, last_end):
    content = end.join([b"1::48::5::978824351", b"6040::7::1::0"]) + end * last_end
    ratings = read_ratings(written(tmp_path, content), BadLines("raise"))
    assert ratings.user.tolist() == [1, 6040]
    assert ratings.movie.tolist() == [48, 7]
    assert ratings.rating.tolist() == [5, 1]
    assert ratings.timestamp.tolist() == [978824351, 0]


def test_the_largest_ids_survive(tmp_path):
    ratings = read_ratings(
        written(tmp_path, b"999999999999999999::1::1::1\n"), BadLines("raise")
    )
    assert ratings.user.tolist() == [999999999999999999]


@pytest.mark.parametrize("line", BAD_RATINGS)
def test_bad_rating_is_named(tmp_path, line):
    path = written(tmp_path, b"1::2::3::4\n" + line + b"\n1::2::4::4\n")
    with pytest.raises(ValueError) as error:
        read_ratings(path, BadLines("raise"))
    assert str(error.value).startswith(
        f"{path}, line 2, must hold `UserID::MovieID::Rating::Timestamp` in integers, "
        f"with a rating from 1 to 5. Received: {line.decode()!r}. Correct the line"
    )


@pytest.mark.parametrize("line", BAD_RATINGS)
def test_bad_rating_is_skipped_alone(tmp_path, line):
    bad_lines = BadLines("skip")
    path = written(tmp_path, b"1::2::3::4\n" + line + b"\n5::6::4::8\n")
    ratings = read_ratings(path, bad_lines)
    assert ratings.user.tolist() == [1, 5]
    assert (bad_lines.count, bad_lines.first.number) == (1, 2)
    assert bad_lines.first.content == line.decode()


def test_line_numbers_count_the_lines_left_out(tmp_path):
    content = b"bad\n1::1::1::1\nbad\nbad\n2::1::1::1\n3::1::1::1\nbad\n4::1::1::1\nbad"
    bad_lines = BadLines("skip")
    ratings = read_ratings(written(tmp_path, content), bad_lines)
    assert ratings.user.tolist() == [1, 2, 3, 4]
    assert [ratings.line_number(index) for index in range(4)] == [2, 5, 6, 8]
    assert bad_lines.count == 5


def test_bytes_that_are_no_text_are_shown(tmp_path):
    bad_lines = BadLines("skip")
    read_ratings(written(tmp_path, b"\xff\x00\n"), bad_lines)
    assert bad_lines.first.content == "\\xff\x00"


def test_an_empty_file_has_no_ratings(tmp_path):
    ratings = read_ratings(written(tmp_path, b""), BadLines("raise"))
    assert ratings.user.tolist() == []


def test_users_are_read(tmp_path):
    content = b"1::F::1::10::48067\r\n7::M::56::16::02139-1234\r\n"
    users = read_users(written(tmp_path, content), BadLines("raise"))
    assert users.user.tolist() == [1, 7]
    assert users.gender.tolist() == ["F", "M"]
    assert users.age.tolist() == [1, 56]
    assert users.occupation.tolist() == [10, 16]
    assert users.zip.tolist() == ["48067", "02139-1234"]


@pytest.mark.parametrize(
    "line", ["", "2::F::1::10", "2::X::1::10::48067", "x::F::1::10::48067"]
)
def test_bad_user_is_named_or_skipped(tmp_path, line):
    path = written(tmp_path, f"1::F::1::10::48067\n{line}\n".encode())
    with pytest.raises(ValueError) as error:
        read_users(path, BadLines("raise"))
    assert str(error.value).startswith(
        f"{path}, line 2, must hold `UserID::Gender::Age::Occupation::Zip`, with "
        f"gender F or M. Received: {line!r}. Correct the line"
    )
    assert read_users(path, BadLines("skip")).user.tolist() == [1]


def test_no_good_user_is_no_users(tmp_path):
    users = read_users(written(tmp_path, b"bad"), BadLines("skip"))
    assert users.user.tolist() == users.zip.tolist() == []


def test_second_definition_of_a_user_is_a_bad_line(tmp_path):
    content = b"1::F::1::10::48067\n2::M::1::10::1\n1::M::1::10::2\n"
    path = written(tmp_path, content)
    with pytest.raises(
        ValueError,
        match="line 3, must hold an id of its own; line 1 has this one already. "
        "Received: '1::M::1::10::2'",
    ):
        read_users(path, BadLines("raise"))
    assert read_users(path, BadLines("skip")).gender.tolist() == ["F", "M"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_movies_are_read_in_either_encoding(tmp_path, encoding):
    # U+0085 is a line end to `str.splitlines`, though not in the file.
    content = "1::Misérables, Les\x85 (1995)::Drama|Musical\n3::A::B::\n9::::Noël\n"
    movies = read_movies(written(tmp_path, content.encode(encoding)), BadLines("raise"))
    assert movies.movie.tolist() == [1, 3, 9]
    assert movies.genres.tolist() == ["Drama", "Musical", "Noël"]
    assert movies.row_splits.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    "line", ["", "2::Jumanji", "2::Jumanji::A||B", "x::Jumanji::A"]
)
def test_bad_movie_is_named_or_skipped(tmp_path, line):
    path = written(tmp_path, f"1::Toy Story::Comedy\n{line}\n".encode())
    with pytest.raises(ValueError) as error:
        read_movies(path, BadLines("raise"))
    assert str(error.value).startswith(
        f"{path}, line 2, must hold `MovieID::Title::Genre|Genre`. "
        f"Received: {line!r}. Correct the line"
    )
    assert read_movies(path, BadLines("skip")).movie.tolist() == [1]
