//! The progress bar, on a terminal only.

use std::fs::File;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of a run on stderr, if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Draws a bar for so many rows, or what `unit` names, `None` for rows without end. A process of a rank, whose stderr is a
    /// pipe, draws on the stderr of its parent.
    pub(crate) fn new(rows: Option<u64>, unit: &str, parent: Option<&str>) -> Self {
        let target = match parent {
            Some(parent) => terminal_of(parent)
                .and_then(|terminal| Some(Term::read_write_pair(terminal.try_clone().ok()?, terminal)))
                .map_or_else(ProgressDrawTarget::hidden, |terminal| ProgressDrawTarget::term(terminal, 10)),
            None if stderr().is_terminal() => ProgressDrawTarget::stderr_with_hz(10),
            None => ProgressDrawTarget::hidden(),
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

/// Removes the bar.
impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns the stderr of another process if it is a terminal.
fn terminal_of(process: &str) -> Option<File> {
    let terminal = File::options().read(true).write(true).open(format!("/proc/{process}/fd/2")).ok()?;
    terminal.is_terminal().then_some(terminal)
}
