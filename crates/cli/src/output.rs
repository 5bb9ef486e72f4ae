//! Standard output and standard error for this program's own text. Control characters from outside never reach a terminal.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::{Context, Error, Result};
use serde::Serialize;

/// The original standard output, set when libraries have been redirected to standard error.
static OWN: OnceLock<File> = OnceLock::new();

/// Redirects libraries' standard output to standard error: NCCL logs to standard output by default, which would corrupt JSON.
/// Afterwards, this program's own output must be written to [`stdout`].
pub(crate) fn keep_libraries_out() -> Result<()> {
    if OWN.get().is_none() {
        let own =
            io::stdout().as_fd().try_clone_to_owned().context("cannot duplicate the standard output")?;
        rustix::stdio::dup2_stdout(io::stderr()).context("cannot redirect the standard output")?;
        // Called once, before the program has threads.
        let _ = OWN.set(own.into());
    }
    Ok(())
}

/// Returns this program's standard output, with control characters escaped.
pub(crate) fn stdout() -> Box<dyn Write + Send> {
    match OWN.get() {
        Some(own) => Box::new(Escaped(own)),
        None => Box::new(Escaped(io::stdout())),
    }
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    Ok(stdout().write_all(to_json(value)?.as_bytes())?)
}

/// Returns indented JSON with a newline at the end.
pub(crate) fn to_json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

pub(crate) fn print(value: &(impl Serialize + Display), as_json: bool) -> Result<()> {
    if as_json { print_json(value) } else { Ok(stdout().write_all(value.to_string().as_bytes())?) }
}

/// Writes a text to standard error in one piece, because ranks share it. If standard error is closed, the text is lost.
pub(crate) fn write_to_stderr(text: &str) {
    let _ = io::stderr().write_all(in_lines(text).as_bytes());
}

/// The status that a shell reports for a program killed by SIGPIPE. Rust ignores that signal, so printing fails instead.
pub(crate) const CLOSED: u8 = 128 + 13;

/// Returns whether the reader has closed the output, the only pipe that this program writes to.
pub(crate) fn is_closed(error: &Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// A stream of text that escapes control characters.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // Each write ends with a complete character.
        self.0.write_all(in_lines(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns standard output for a child process of this program.
pub(crate) fn stdout_of_child() -> Result<Stdio> {
    match OWN.get() {
        Some(own) => Ok(own.try_clone().context("cannot duplicate the standard output")?.into()),
        None => Ok(Stdio::inherit()),
    }
}

/// Returns a text of one line, with control characters replaced by escapes such as `\u001b`.
pub(crate) fn in_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Returns a text of several lines, with control characters except newlines and tabs replaced by escapes. JSON keeps its meaning:
/// it has control characters only in strings, where these escapes are valid.
pub(crate) fn in_lines(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

pub(crate) fn in_xml(text: &str) -> String {
    in_lines(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    // The last two are not control characters, but are invalid in XML.
    let is_escaped = |character: char| {
        (character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}')) && !stays(character)
    };
    if !text.chars().any(is_escaped) {
        return text.into();
    }
    let shown = |character: char| match is_escaped(character) {
        true => format!("\\u{:04x}", u32::from(character)),
        false => character.into(),
    };
    text.chars().map(shown).collect::<String>().into()
}
