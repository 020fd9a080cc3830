from __future__ import annotations

import io
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.errors import LaunchError
from horovod.launch.output import console as console_module
from horovod.launch.output import streams as output_module
from horovod.launch.output.console import Console, Sink, text_stream_sink
from horovod.launch.output.streams import LinePrefixer, Output, rank_directory


def prefixed(*chunks: bytes) -> bytes:
    prefixer = LinePrefixer(3, "stdout")
    return b"".join([*map(prefixer.feed, chunks), prefixer.close()])


P = b"[3]<stdout>:"


def test_every_line_gets_its_prefix() -> None:
    assert prefixed(b"one\ntwo\n\nthree\n") == P + b"one\n" + P + b"two\n" + P + b"\n" + P + b"three\n"


def test_last_line_without_end_is_kept_without_adding_one() -> None:
    assert prefixed(b"one\ntwo") == P + b"one\n" + P + b"two"


def test_carriage_return_ends_a_line_and_stays() -> None:
    assert prefixed(b"10%\r20%\rdone\n") == P + b"10%\r" + P + b"20%\r" + P + b"done\n"


def test_carriage_return_and_newline_are_one_end_even_when_read_apart() -> None:
    assert prefixed(b"one\r\ntwo\r\n") == P + b"one\r\n" + P + b"two\r\n"
    assert prefixed(b"one\r", b"\ntwo\r", b"\n") == P + b"one\r\n" + P + b"two\r\n"


def test_complete_lines_come_at_once_and_incomplete_ones_are_held_back() -> None:
    prefixer = LinePrefixer(3, "stdout")
    assert prefixer.feed(b"one\ntw") == P + b"one\n"
    assert prefixer.feed(b"o") == b""
    assert prefixer.feed(b"\r") == P + b"two\r"
    assert prefixer.close() == b""


def test_bytes_that_are_not_utf8_pass_unchanged() -> None:
    assert prefixed(b"\xff\xfe\x80\n") == P + b"\xff\xfe\x80\n"


def test_other_separators_of_unicode_do_not_end_a_line() -> None:
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\n".encode()
    assert prefixed(text) == P + text


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", "ä".encode(), "中".encode(), b"\xff"])), st.data())
def test_how_the_text_was_read_does_not_matter(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert prefixed(*filter(None, chunks)) == prefixed(text)
    assert prefixed(text).replace(P, b"") == text


def test_multi_byte_characters_survive_any_chunk_border() -> None:
    line = ("Grüße 中文 🎉 " * 500).encode() + b"\n"
    assert prefixed(*(line[index : index + 7] for index in range(0, len(line), 7))) == P + line


def test_endless_line_is_cut_between_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "LINE_LIMIT_BYTES", 10)
    prefixer = LinePrefixer(3, "stdout")
    assert prefixer.feed("äääää".encode()) == b""
    assert prefixer.feed("ä".encode()[:1]) == P + "äääää".encode() + b"\n"
    assert prefixer.feed("ä".encode()[1:]) == b""
    assert prefixer.close() == P + "ä".encode()


def test_timestamp_stands_before_the_prefix_of_every_line() -> None:
    before = time.time()
    lines = LinePrefixer(0, "stderr", timestamps=True).feed(b"one\ntwo\n").decode().splitlines()
    for line, text in zip(lines, ("one", "two"), strict=True):
        stamp, prefix, rest = line.partition("[0]<stderr>:")
        assert (prefix, rest) == ("[0]<stderr>:", text)
        assert before - 1 <= time.mktime(time.strptime(stamp)) <= time.time()


def test_tail_keeps_the_last_lines_and_only_the_last_state_of_a_progress_bar() -> None:
    prefixer = LinePrefixer(0, "stderr")
    prefixer.feed(b"".join(b"line %d\n" % number for number in range(100)))
    prefixer.feed(b"".join(b"%d%%\r" % number for number in range(100)))
    prefixer.feed(b"\xff end")
    prefixer.close()
    assert prefixer.tail()[-3:] == ["line 98", "line 99", "� end"]
    assert len(prefixer.tail()) == 20


@pytest.mark.parametrize(
    ("size", "name"), [(1, "rank.3"), (10, "rank.3"), (11, "rank.03"), (101, "rank.003")]
)
def test_directories_of_ranks_have_one_width(size: int, name: str) -> None:
    assert rank_directory(Path("d"), 3, size) == Path("d") / name


def test_unfinished_line_of_one_rank_is_not_continued_by_another() -> None:
    written: list[bytes] = []
    sink = Sink(written.append)
    sink.write(b"[0]half", 0)
    sink.write(b"[1]whole\n", 1)
    sink.write(b"[0]rest\n", 0)
    assert b"".join(written) == b"[0]half\n[1]whole\n[0]rest\n"


def test_progress_bars_of_several_ranks_are_whole_lines_and_that_of_one_stays_in_place() -> None:
    written: list[bytes] = []
    sink = Sink(written.append)
    for step in (b"10%", b"20%"):
        sink.write(b"[0]" + step + b"\r", 0)
    for rank in (1, 0, 1):
        sink.write(b"[%d]30%%\r" % rank, rank)
    sink.write(b"[1]done\n", 1)
    sink.write(b"[0]done\n", 0)
    assert b"".join(written) == (b"[0]10%\r[0]20%\r\n[1]30%\r\n[0]30%\r\n[1]30%\r[1]done\n[0]done\n")


def test_on_a_terminal_the_bars_of_several_ranks_begin_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(console_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    written: list[bytes] = []
    sink = Sink(written.append, is_terminal=True)
    for step in range(100):
        for rank in (0, 1):
            sink.write(b"[%d]%d%%\r" % (rank, step), rank)
        now[0] += console_module.BAR_S / 50
    assert b"".join(written).count(b"\n") == 4  # twice rank 1 comes between rank 0's
    sink.write(b"[0]done\n", 0)
    sink.flush()
    assert written[-2:] == [b"[0]done\n", b"[1]99%\r"]  # nothing is lost but what the next step replaces


def test_half_of_a_line_end_is_no_step_of_a_bar() -> None:
    written: list[bytes] = []
    sink = Sink(written.append, is_terminal=True)
    for rank, text in ((0, b"bar\r"), (1, b"bar\r"), (0, b"bar\r"), (1, b"line\r"), (1, b"\nmore\n")):
        sink.write(text, rank)
    assert b"line\r\nmore\n" in b"".join(written)


def test_lost_sink_says_so_once_and_discards_the_rest() -> None:
    lost: list[OSError] = []

    def fail(_: bytes) -> None:
        raise BrokenPipeError

    sink = Sink(fail, lost.append)
    sink.write(b"one\n", 0)
    sink.write(b"two\n", 0)
    assert len(lost) == 1


def test_text_streams_take_the_place_of_descriptors() -> None:
    stream = io.StringIO()
    text_stream_sink(stream).write(b"gr\xc3\xbcn \xff\n", 0)
    assert stream.getvalue() == "grün �\n"


def test_output_of_all_ranks_is_drained_to_streams_and_files(tmp_path: Path) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(2, Console(stdout=stdout, stderr=stderr), directory=tmp_path / "new" / "logs")
    ends = {}
    for rank in (0, 1):
        for stream in ("stdout", "stderr"):
            read, ends[rank, stream] = os.pipe()
            output.attach(read, rank, stream)
    output.start()
    for (rank, stream), end in ends.items():
        os.write(end, f"{stream} of {rank}\nend".encode())
        os.close(end)
    output.drain(lambda: False)
    assert sorted(stdout.getvalue().split("\n")) == sorted(
        ["[0]<stdout>:stdout of 0", "[1]<stdout>:stdout of 1", "[0]<stdout>:end", "[1]<stdout>:end"]
    )
    for rank in (0, 1):
        for stream in ("stdout", "stderr"):
            kept = (tmp_path / "new" / "logs" / f"rank.{rank}" / stream).read_text()
            assert kept == f"[{rank}]<{stream}>:{stream} of {rank}\n[{rank}]<{stream}>:end"
    assert output.tail(1) == ("stderr of 1", "end")


def test_drain_does_not_wait_for_a_pipe_that_a_stranger_holds() -> None:
    stdout = io.StringIO()
    output = Output(1, Console(stdout=stdout))
    read, held = os.pipe()
    output.attach(read, 0, "stdout")
    output.start()
    os.write(held, b"text")
    output.drain(lambda: False)
    os.close(held)
    assert stdout.getvalue() == "[0]<stdout>:text"


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = Output(1, Console(), directory=tmp_path / "file")
    read, write = os.pipe()
    with pytest.raises(LaunchError, match=r"file/rank.0/stdout.*--output-filename"):
        output.attach(read, 0, "stdout")
    output.drain(lambda: False)
    os.close(read)
    os.close(write)


def test_output_that_is_not_shown_is_in_files_and_last_lines(tmp_path: Path) -> None:
    stdout = io.StringIO()
    output = Output(2, Console(stdout=stdout), directory=tmp_path, shown={1})
    for rank in (0, 1):
        read, write = os.pipe()
        output.attach(read, rank, "stdout")
        os.write(write, b"text of %d\n" % rank)
        os.close(write)
    output.start()
    output.drain(lambda: False)
    assert stdout.getvalue() == "[1]<stdout>:text of 1\n"
    assert (tmp_path / "rank.0" / "stdout").read_text() == "[0]<stdout>:text of 0\n"
    assert output.tail(0) == ("text of 0",)


def test_ranks_come_and_go_while_output_is_forwarded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(output_module, "_TAILS", 3)
    stdout = io.StringIO()
    output = Output(10, Console(stdout=stdout), directory=tmp_path, shown={0, 1})
    output.start()
    for number in range(5):
        output.expect(number, "stdout", label=number % 3)
        output.put(number, "stdout", b"worker %d\n" % number, lambda _: None)
        output.end(number)
        output.end(number)
    read_end, write_end = os.pipe()
    output.attach(read_end, 5, "stdout", label=0)
    os.write(write_end, b"attached")
    os.close(write_end)
    output.drain(lambda: False)
    output.drain(lambda: False)
    shown = [(0, "worker 0"), (1, "worker 1"), (0, "worker 3"), (1, "worker 4"), (0, "attached")]
    assert stdout.getvalue() == "".join(f"[{label}]<stdout>:{text}\n" for label, text in shown).rstrip("\n")
    assert [output.tail(number) for number in range(6)] == [
        *((), ()),  # too long ago
        *((f"worker {number}",) for number in range(2, 5)),
        ("attached",),
    ]
    assert (tmp_path / "rank.2" / "stdout").read_text() == "[2]<stdout>:worker 2\n"
    assert not output._prefixers.keys() - {(5, "stdout")}


def test_two_ranks_with_one_label_do_not_write_over_each_other(tmp_path: Path) -> None:
    output = Output(2, Console(stdout=io.StringIO()), directory=tmp_path)
    output.expect(0, "stdout", label=1)
    output.expect(1, "stdout", label=1)
    output.start()
    for number in (0, 1, 0):
        output.put(number, "stdout", b"%d\n" % number, lambda _: None)
    output.drain(lambda: False)
    assert (tmp_path / "rank.1" / "stdout").read_text() == "".join(f"[1]<stdout>:{n}\n" for n in (0, 1, 0))


def test_a_result_that_nobody_wants_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "most_result_bytes", lambda: 1000)
    output = Output(2, Console())
    for number in range(3):
        output.expect(number, output_module.RESULT)
        output.put(number, output_module.RESULT, b"x" * 600, lambda _: None)
        output.end(number)
        if number < 2:
            output.discard(number)
            output._empty_inbox()  # in place of the thread, which has not begun
    output.start()
    output.drain(lambda: False)
    assert output.results() == {2: bytearray(b"x" * 600)}
