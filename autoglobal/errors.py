"""The exceptions of autoglobal. Each is also the built-in type that a caller would expect."""

from __future__ import annotations

from types import TracebackType

from ._text import printable


class AutoglobalError(Exception):
    """Base class of everything that autoglobal raises on purpose.

    ::

        try:
            with global_scope(placement, sbp):
                model.head = build_head()
        except AutoglobalError as error:
            print(error)

    Its text is one line that can be printed, whatever the names in it are.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in args))


class OneFlowMissing(AutoglobalError, ImportError):
    """OneFlow cannot be imported, or what is installed under its name is not OneFlow.

    Raised by ``import autoglobal``. The message says what is missing and the line to type.
    """


class SpecError(AutoglobalError, ValueError):
    """An option has the right type and a value that cannot work, on this world or at all.

    Raised where a scope is made, before anything has changed.
    """


class SpecTypeError(AutoglobalError, TypeError):
    """An option has the wrong type, or there is no such option.

    Raised where a scope is made, before anything has changed.
    """


class ConversionError(AutoglobalError, RuntimeError):
    """What is assigned cannot become global as it was asked for.

    Raised by the assignment, on every rank alike, before anything has changed or was sent.
    The message names the tensor by its path, what was expected and what to write instead.
    """


class DivergenceError(ConversionError):
    """The ranks do not do the same.

    Raised on every rank, before anything has changed; and at once, on this one alone, by whatever
    it does in a scope that another rank has left. The message names the first difference:
    the tensor's path, what this rank has and what another rank has. A rank that has left a scope
    by an exception of its own keeps that one.
    """


class UnusedRuleWarning(UserWarning):
    """A pattern of ``sbp`` decides for no tensor of a call, or of a scope by its end."""


class LateRuleWarning(UserWarning):
    """A rule by path came after the constructor, inside of which another rule had decided."""


class TiedRulesWarning(UserWarning):
    """A tensor that a module holds under two names has another rule of ``sbp`` for each."""


class SharedMemoryWarning(UserWarning):
    """Two Parameters lie in one memory, and will be two tensors once they are global.

    Looked for on the CPU, among Parameters of which no more than three have one shape, and not of
    bfloat16.
    """


class HookRemovedWarning(UserWarning):
    """Somebody has taken the hook off ``nn.Module`` while a scope was open.

    What was assigned after that may have stayed local. It is told as the scope closes.
    """


class NeverEnteredWarning(UserWarning):
    """A scope was made and is gone, and nothing ever ran in it."""


class UnconvertedWarning(UserWarning):
    """An optimizer was to follow its Parameters, of which none is global yet."""


class SplitUpdateWarning(UserWarning):
    """An optimizer of OneFlow's does not move a Parameter that is split."""


def shorten_traceback(traceback: TracebackType | None) -> None:
    """Of each row of frames of this library leave the first and the last in a traceback.

    What is between them helps nobody who looks for the line of their own that is to be changed.
    """
    step = traceback
    while step is not None:
        if _is_ours(step):
            last = step.tb_next
            while last is not None and _is_ours(last) and last.tb_next is not None:
                if not _is_ours(last.tb_next):
                    break
                last = last.tb_next
            step.tb_next = last
        step = step.tb_next


def _is_ours(step: TracebackType) -> bool:
    # Code that exec() runs may have no __name__.
    return str(step.tb_frame.f_globals.get("__name__")).partition(".")[0] == _OURS


_OURS = __name__.partition(".")[0]


class _ShortTraceback:
    """``with short_traceback:`` the traceback of an error of ours that leaves it is short."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, AutoglobalError):
            shorten_traceback(traceback)


short_traceback = _ShortTraceback()
