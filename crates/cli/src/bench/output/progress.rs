//! The progress bar, on a terminal only.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of a run on stderr, if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Draws a bar for this many rows, or other units; `None` for rows without end.
    pub(crate) fn new(rows: Option<u64>, unit: &str) -> Self {
        let target = if stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(rows, target);
        let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{msg}} [{{elapsed}}, {{eta}} left]");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self(bar)
    }

    /// Counts a row, while `print` prints it without the bar.
    pub(crate) fn row<R>(&self, message: impl FnOnce() -> String, print: impl FnOnce() -> R) -> R {
        if self.0.is_hidden() {
            return print();
        }
        self.0.set_message(message());
        self.0.inc(1);
        self.0.suspend(print)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
