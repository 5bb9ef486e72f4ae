//! What can be wrong with a call.

use libnccl::sys::Functions;

use crate::library::{IN_PROGRESS, SUCCESS};

/// All of the header's, and some that it does not know.
pub(crate) const CODES: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, u32::MAX];

/// What a call writes where its caller wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outs {
    /// What it should.
    Proper,
    Nothing,
    /// Null handles, null strings, the number 0.
    Zeros,
    /// Handles from nowhere, strings that are not UTF-8, the number -1.
    Ones,
    /// Strings of a megabyte, the largest number that is not negative.
    Huge,
    /// The first 40 bytes, or the first half.
    Part,
}

impl Outs {
    pub(crate) const ALL: [Self; 6] =
        [Self::Proper, Self::Nothing, Self::Zeros, Self::Ones, Self::Huge, Self::Part];
}

/// What a nonblocking communicator says when it is asked how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    Never,
    /// In progress twice, then this code.
    Ends(u32),
    /// In progress, done, in progress, failed, and again.
    Wavers,
}

impl Progress {
    /// The answer to question number `asked`.
    pub(crate) fn answer(self, asked: usize) -> u32 {
        match self {
            Self::Done => SUCCESS,
            Self::Never => IN_PROGRESS,
            Self::Ends(code) => *[IN_PROGRESS, IN_PROGRESS].get(asked).unwrap_or(&code),
            Self::Wavers => [IN_PROGRESS, SUCCESS, IN_PROGRESS, 6][asked % 4],
        }
    }
}

/// What `ncclGetErrorString` and `ncclGetLastError` answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    Plain,
    Null,
    Empty,
    NotUtf8,
    Megabyte,
    /// Another one at each call, in the same place.
    Changing,
}

/// One call that goes wrong.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) function: &'static str,
    /// Which of the calls of the function, from 0.
    pub(crate) at: usize,
    pub(crate) code: u32,
    pub(crate) outs: Outs,
    /// From this call on.
    pub(crate) progress: Progress,
    pub(crate) text: Text,
    /// The library lacks the function.
    pub(crate) is_absent: bool,
    /// The version that the library says it is.
    pub(crate) version: i32,
}

impl Fault {
    /// A call, as it should be.
    pub(crate) fn of((function, at): (&str, usize)) -> Self {
        let known = Functions::NAMES.iter().find(|name| **name == function);
        Self {
            function: known.expect("a function of the header"),
            at,
            code: SUCCESS,
            outs: Outs::Proper,
            progress: Progress::Done,
            text: Text::Plain,
            is_absent: false,
            version: libnccl::sys::NCCL_VERSION_CODE.cast_signed(),
        }
    }
}
