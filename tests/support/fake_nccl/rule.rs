//! Rules by which calls deviate from success.

/// The output that a call writes through its pointer arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// A correct value, handle or string, at once.
    Correct,
    Nothing,
    /// Null handles, null strings, the number 0.
    Zeros,
    /// Dangling handles, strings that are not UTF-8, the number -1.
    Ones,
    /// Strings of a megabyte, the largest positive number; a handle even if none is due.
    Huge,
    /// The first 40 bytes of an id, or the first half of another value.
    Partial,
}

impl Output {
    pub(crate) const ALL: [Self; 6] =
        [Self::Correct, Self::Nothing, Self::Zeros, Self::Ones, Self::Huge, Self::Partial];
}

/// The text that `ncclGetErrorString` and `ncclGetLastError` return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorText {
    Plain,
    Null,
    Empty,
    NotUtf8,
    Megabyte,
    /// A different text at each call, at the same address.
    Changing,
}

/// The states that `ncclCommGetAsyncError` reports.
#[derive(Debug, Clone)]
pub(crate) struct AsyncStates {
    pub(super) first: std::collections::VecDeque<u32>,
    /// Reported in turn, for ever, when `first` is used up.
    repeated: Vec<u32>,
    turn: usize,
}

impl AsyncStates {
    pub(crate) fn new(first: impl IntoIterator<Item = u32>, repeated: impl IntoIterator<Item = u32>) -> Self {
        Self { first: first.into_iter().collect(), repeated: repeated.into_iter().collect(), turn: 0 }
    }

    /// Returns the state that the next query will report.
    pub(super) fn peek(&self) -> u32 {
        self.first.front().copied().unwrap_or(self.repeated[self.turn % self.repeated.len()])
    }

    pub(super) fn next(&mut self) -> u32 {
        let state = self.peek();
        if self.first.pop_front().is_none() {
            self.turn += 1;
        }
        state
    }
}

/// A deviation of one function.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) function: &'static str,
    /// The number of calls that come before the one that deviates; `None` makes every call deviate.
    pub(crate) after: Option<usize>,
    pub(crate) code: u32,
    /// `None` writes what NCCL does: a correct output if the code is a success, otherwise nothing.
    pub(crate) output: Option<Output>,
    /// Replaces the communicators' asynchronous states from this call on.
    pub(crate) async_states: Option<AsyncStates>,
}

impl Rule {
    /// Makes every call of a function return a code.
    pub(crate) fn always(function: &'static str, code: u32) -> Self {
        Self { function, after: None, code, output: None, async_states: None }
    }

    /// Makes one call of a function return a code, after `after` others.
    pub(crate) fn once(function: &'static str, after: usize, code: u32) -> Self {
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
