//! Rules by which calls deviate from success, and result codes.

use std::ffi::CStr;

/// `ncclSuccess`.
pub const SUCCESS: u32 = 0;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: u32 = 4;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: u32 = 5;
/// `ncclInProgress`.
pub const IN_PROGRESS: u32 = 7;

/// The output that a call writes through its pointer arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A correct value, handle or string, immediately.
    Correct,
    /// Nothing: the place keeps its value.
    Nothing,
    /// Null handles, null strings, the number 0.
    Zeros,
    /// Dangling handles, strings that are not UTF-8, the number -1.
    Ones,
}

impl Output {
    /// Every output.
    pub const ALL: [Self; 4] = [Self::Correct, Self::Nothing, Self::Zeros, Self::Ones];
}

/// The text that `ncclGetErrorString` and `ncclGetLastError` return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorText {
    /// This text, of any bytes.
    Of(&'static CStr),
    /// A null pointer.
    Null,
    /// A different text at each call, at the same address.
    Changing,
}

impl ErrorText {
    /// The text unless a test sets another one.
    pub const PLAIN: Self = Self::Of(c"a text");
}

/// A deviation of one function.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The C function.
    pub function: &'static str,
    /// The number of calls that come before the one that deviates; `None` makes every call deviate.
    pub after: Option<usize>,
    /// The code that the call returns.
    pub code: u32,
    /// `None` writes what NCCL does: a correct output if the code is a success, otherwise nothing.
    pub output: Option<Output>,
    /// Leaves the communicators in progress forever, from this call on.
    pub never_ends: bool,
}

impl Rule {
    /// Makes every call of a function return a code.
    pub fn always(function: &'static str, code: u32) -> Self {
        Self { function, after: None, code, output: None, never_ends: false }
    }

    /// Makes one call of a function return a code, after `after` others.
    pub fn once(function: &'static str, after: usize, code: u32) -> Self {
        Self { after: Some(after), ..Self::always(function, code) }
    }

    /// Returns whether the rule applies to this call of its function.
    pub(super) fn applies(&mut self) -> bool {
        match &mut self.after {
            None => true,
            Some(0) => {
                // Never again.
                self.after = Some(usize::MAX);
                true
            }
            Some(after) => {
                *after -= 1;
                false
            }
        }
    }
}
