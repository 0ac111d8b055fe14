"""The logger ``autoglobal``: which lines there are, when, and what a bad handler can do."""

from __future__ import annotations

import io
import logging
import sys
from logging import DEBUG, INFO, WARNING

import oneflow as flow
import pytest
from oneflow import nn

from autoglobal import (
    ConversionError,
    ConversionRecord,
    UnusedRuleWarning,
    auto_global,
    global_scope,
    local_to_global,
)
from autoglobal.ranks import collectives
from tests.helpers.support import (
    S0,
    B,
    Model,
    assert_global,
    counted,
    error_of,
    global_names,
    linear,
    local_names,
    parameter,
    tensor,
    warns,
)

A = counted(8, 4)
logger = logging.getLogger("autoglobal")


class Kept(logging.Handler):
    """What was logged, and perhaps an exception for each line."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if self.error is not None:
            raise self.error

    def lines(self, level: int) -> list[str]:
        return [one.getMessage() for one in self.records if one.levelno == level]


@pytest.fixture
def log():
    """``log(level)`` gives a handler that is on until the test ends."""
    handlers = []

    def put_on(level: int, error: BaseException | None = None) -> Kept:
        handlers.append(Kept(error))
        logger.addHandler(handlers[-1])
        logger.setLevel(level)
        return handlers[-1]

    yield put_on
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_silent_by_default(P, capfd):
    assert [type(one) for one in logger.handlers] == [logging.NullHandler]
    assert (logger.level, logger.propagate) == (logging.NOTSET, True)
    m = Model()
    with global_scope(P, S0):
        m.new = parameter(A)
    assert capfd.readouterr() == ("", "")


def test_one_line_on_rank_0_when_a_scope_closes(P, rank, world, log):
    handler, m = log(INFO), Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(A)
        m.sub = nn.Linear(4, 8)
        assert handler.records == []
    nbytes = sum(one.nbytes for one in scope.converted)
    if rank == 0:
        (line,) = handler.lines(INFO)
        assert line.startswith(f"global_scope({P}, split(dim=0)): 3 converted ({nbytes} bytes ")
        assert ", 0 kept, 0 left local; " in line
        assert (" 0 bytes sent" in line) == (world == 1)
        assert "\n" not in line
    else:
        assert handler.records == []


def test_a_scope_that_is_left_and_one_that_is_refused(P, rank, log):
    def leave():
        with global_scope(P, S0):
            raise ZeroDivisionError

    def ask_too_much():
        with global_scope(P, flow.sbp.split(3), when="exit"):
            m.new = parameter(A)

    handler, m = log(INFO), Model()
    assert type(error_of(leave)) is ZeroDivisionError
    assert "no axis 3" in str(error_of(ask_too_much))
    if rank == 0:
        left, refused = handler.lines(INFO)
        assert ", ended by ZeroDivisionError: 0 converted" in left
        assert ", ended by ConversionError: 0 converted" in refused


def test_a_call_and_a_decorated_function(P, rank, log):
    @global_scope(P, B)
    def build():
        return nn.Linear(4, 8)

    handler = log(INFO)
    local_to_global(linear(A, counted(8)), P, B)
    build()
    build()
    if rank == 0:
        call, *functions = handler.lines(INFO)
        assert call.startswith("local_to_global of Linear: 2 converted (160 bytes here)")
        assert [line.split(":")[0] for line in functions] == [f"global_scope({P}, broadcast)"] * 2


def test_a_line_for_each_event_on_every_rank(P, rank, world, log):
    handler, m, sub = log(DEBUG), Model(), linear(A, counted(8, start=rank))
    with global_scope(P, {"*bias": S0, "*": B}, check=world > 1) as scope:
        m.x = 1
        m.new = parameter(A)
        m.relu = nn.ReLU()
        m.sub = sub
    lines = handler.lines(DEBUG)
    bias = scope.converted[2].nbytes
    values = "not sent" if world == 1 else "sent"
    assert lines == [
        "the assignment of Model.new: 1 made global, 128 bytes here, values not sent; "
        "0 stayed as they were",
        f"the assignment of Model.sub: 2 made global, {128 + bias} bytes here, values {values}; "
        "0 stayed as they were",
    ]
    assert len(handler.lines(INFO)) == (rank == 0)


def test_what_stays_and_the_end_of_a_scope(P, log):
    handler, m = log(DEBUG), Model()
    with global_scope(P, {"*bias": None, "*": B}, when="exit"):
        m.sub = nn.Linear(4, 8)
        assert handler.records == []
    (line,) = handler.lines(DEBUG)
    assert line.startswith("the end of the scope: 1 made global, 128 bytes here, ")
    assert line.endswith("; 1 stayed as they were")
    m.sub = nn.Linear(4, 8)
    local_to_global(m, P, {"*": None})
    assert handler.lines(DEBUG)[1:] == [
        "the conversion of Model: 0 made global, 0 bytes here, values not sent; "
        "2 stayed as they were"
    ]


def test_a_decorated_class_has_no_end(P, log):
    @auto_global(P, B)
    class Stated(Model):
        pass

    handler, m = log(DEBUG), Stated()
    m.new = parameter(A)
    (line,) = handler.lines(DEBUG)
    assert line.startswith("the assignment of Stated.new: 1 made global, 128 bytes here")
    assert handler.lines(INFO) == []


def test_what_was_refused_has_no_line(P, log):
    handler, m = log(DEBUG), Model()
    with global_scope(P, flow.sbp.split(1)):
        assert error_of(lambda: setattr(m, "bad", parameter(counted(8))))
    assert handler.lines(DEBUG) == []


class Named:
    """A function for ``sbp=`` that counts who asks for its name."""

    asked = 0

    @property
    def __name__(self) -> str:
        Named.asked += 1
        return "named"

    def __call__(self, owner, path, value):
        return B


def test_nothing_is_made_up_where_nobody_listens(P, log, monkeypatch):
    asked, made, is_on = [], [], logger.isEnabledFor
    monkeypatch.setattr(
        "autoglobal.conversion.session.is_logged", lambda level: asked.append(level) or is_on(level)
    )
    monkeypatch.setattr(logging, "_logRecordFactory", lambda *_, **__: made.append(1))
    handler, m = log(WARNING), Model()
    Named.asked = 0
    with global_scope(P, Named(), check=False):
        m.new = parameter(A)
        m.sub = nn.Linear(4, 8)
        m.x = 1
    local_to_global(linear(A), P, Named(), check=False)
    assert asked == [DEBUG] * 4 + [INFO] + [DEBUG, INFO], "once for each event"
    assert (Named.asked, made, handler.records) == (0, [], [])


def test_a_handler_that_raises(P, rank, capsys, log):
    """Even on one rank alone: nothing is half converted, and the ranks do not part."""
    handler, m = log(DEBUG, ValueError("a bad handler") if rank == 0 else None), Model()
    with global_scope(P, S0) as scope:
        m.new = parameter(A)
        m.sub = nn.Linear(4, 8)
    assert_global(m.new, A, P, S0)
    assert global_names(m) == ["new", "sub.weight", "sub.bias"]
    assert len(scope.converted) == 3
    assert len(handler.records) == (4 if rank == 0 else 3)
    assert ("ValueError: a bad handler" in capsys.readouterr().err) == (rank == 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "raiseExceptions", False)
        local_to_global(linear(A), P, S0)
    assert capsys.readouterr().err == ""


def test_a_program_that_is_interrupted_in_a_handler(P, log):
    log(DEBUG, KeyboardInterrupt())
    m, p = Model(), parameter(A)
    with pytest.raises(KeyboardInterrupt), global_scope(P, S0):
        m.new = p
    assert_global(m.new, A, P, S0)


def test_a_name_that_raises_harms_no_scope(P, capsys, log):
    class Broken(Named):
        @property
        def __name__(self) -> str:
            raise ZeroDivisionError("no name")

    log(INFO)
    m = Model()
    with global_scope(P, Broken(), check=False):
        m.new = parameter(A)
    assert_global(m.new, A, P, B)


@pytest.mark.ranks(2, 4)
def test_one_rank_that_logs_tells_the_others_nothing(P, rank, log):
    handler = log(DEBUG if rank == 0 else WARNING)
    m = Model()
    sent = []
    for _ in range(2):
        before = collectives.traffic.sent
        with global_scope(P, S0):
            m.new = parameter(A)
        sent.append(collectives.traffic.sent - before)
        logger.setLevel(DEBUG)
    assert sent[0] == sent[1]
    assert len(handler.records) == (4 if rank == 0 else 1)


def test_lines_hold_text_alone(P, log):
    handler, m = log(DEBUG), Model()
    with global_scope(P, S0):
        m.new = parameter(A)
    for record in handler.records:
        assert isinstance(record.msg, str)
        assert not record.args
        assert record.name == "autoglobal"


class Broken(io.StringIO):
    def write(self, text):
        raise OSError("no space left on device")

    flush = close = write


def test_a_bar_that_cannot_be_shown_stops_no_rank(P, monkeypatch):
    """The ranks have agreed by then: where rank 0 failed the others would be global."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Broken())
        local_to_global(model, P, B, progress=True)
    assert local_names(model) == []


CLASS = "Model\n2026-01-01 INFO all is well\x1b[31m"
FORGED = f"{CLASS}\udc80"  # which no class can be called


@pytest.mark.parametrize("when", ["assign", "exit"])
def test_names_reach_a_terminal_as_text(P, when, log):
    """A line break in a name would forge a line of the log, and a code colour the terminal."""
    lines = log(DEBUG)
    kind = type(CLASS, (Model,), {})
    m = kind()
    with global_scope(P, {"*": B}, when=when) as scope:
        setattr(m, FORGED, parameter(A))
        m.sub = kind()
        waiting = str(scope)
    m.table = Model()
    left = kind()
    left.register_buffer(FORGED, tensor(A))
    with global_scope(P, B, buffers=False) as other:
        m.sub = left
    record = ConversionRecord()
    local_to_global(kind(), P, B, record=record)
    shown = [waiting, repr(scope), repr(record), *map(str, (scope, other, record))]
    for text in (*shown, *lines.lines(DEBUG), *lines.lines(INFO)):
        for line in text.splitlines():
            assert line.isprintable(), ascii(line)
            assert not line.startswith("2026"), line


def test_errors_and_warnings_are_one_line_that_can_be_printed(P):
    m = type(CLASS, (Model,), {})()
    with global_scope(P, S0), pytest.raises(ConversionError) as caught:
        setattr(m, FORGED, parameter(counted(0, 4)))
    assert str(caught.value).isprintable()
    assert "all is well" in str(caught.value)
    setattr(m, FORGED, parameter(A))
    with warns(UnusedRuleWarning) as told:
        local_to_global(m, P, {f"{FORGED}x": S0, "*": B})
    assert all(str(one.message).isprintable() for one in told)
