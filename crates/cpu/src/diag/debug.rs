//! `NCCL_DEBUG` logging, in NCCL's line format, so that tools for NCCL's logs can read these.
//!
//! The environment is read before the first line, and again after a [`reset`].
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use libnccl::sys::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};


/// The subsystem of a line, which `NCCL_DEBUG_SUBSYS` selects by. The numbers are NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Subsystem {
    /// Creation of communicators. The version precedes the first line.
    Init = 1 << 0,
    Collective = 1 << 1,
    PointToPoint = 1 << 2,
    SharedMemory = 1 << 3,
    Environment = 1 << 7,
    Allocation = 1 << 8,
    /// Rendezvous of ranks.
    Bootstrap = 1 << 12,
    Registration = 1 << 13,
    Ras = 1 << 15,
    /// Lines that belong to INIT and NET.
    Network = 1 << 0 | 1 << 4,
}

use Subsystem::*;

const SUBSYSTEMS: [(&str, u32); 18] = [
    ("INIT", Init as u32),
    ("COLL", Collective as u32),
    ("P2P", PointToPoint as u32),
    ("SHM", SharedMemory as u32),
    ("NET", 1 << 4),
    ("GRAPH", 1 << 5),
    ("TUNING", 1 << 6),
    ("ENV", Environment as u32),
    ("ALLOC", Allocation as u32),
    ("ALLOC_HOST", 1 << 17),
    ("CALL", 1 << 9),
    ("PROXY", 1 << 10),
    ("NVLS", 1 << 11),
    ("BOOTSTRAP", Bootstrap as u32),
    ("REG", Registration as u32),
    ("PROFILE", 1 << 14),
    ("RAS", Ras as u32),
    ("DESTROY", 1 << 16),
];

const DEFAULT_SUBSYSTEMS: u32 = Init as u32 | Bootstrap as u32 | Environment as u32;

/// The levels by their `NCCL_DEBUG` names, with their bits in lists of levels.
const LEVELS: [(&str, u32); 6] = [
    ("VERSION", VERSION_LINES),
    ("WARN", WARNING_LINES),
    ("ATTN", 1 << 6),
    ("INFO", INFORMATION_LINES),
    ("ABORT", 1 << 4),
    ("TRACE", 1 << 5),
];
const VERSION_LINES: u32 = 1 << 1;
const WARNING_LINES: u32 = 1 << 2;
const INFORMATION_LINES: u32 = 1 << 3;
const DEFAULT_STAMPED: u32 = WARNING_LINES | 1 << 6;

const DEFAULT_STAMP: &CStr = c"[%F %T] ";

/// The enabled lines: the bits of the subsystems, and the following.
static ENABLED: AtomicU32 = AtomicU32::new(UNREAD);
const UNREAD: u32 = 1 << 31;
const WARNINGS: u32 = 1 << 30;
/// The version line, until it is logged.
const VERSION: u32 = 1 << 29;

/// The settings since the last [`reset`]. A thread may still write a line by those from before.
static SETTINGS: Mutex<Option<Arc<Settings>>> = Mutex::new(None);

/// Logs an INFO line.
pub(crate) fn info(subsystem: Subsystem, text: impl FnOnce() -> String) {
    if is_wanted(subsystem) {
        information(&text());
    }
}

/// Logs the version, unless a line before has.
pub(crate) fn begin() {
    is_wanted(Init);
}

fn is_wanted(subsystem: Subsystem) -> bool {
    let wanted = enabled();
    if subsystem as u32 & Init as u32 != 0
        && wanted & VERSION != 0
        && ENABLED.fetch_and(!VERSION, Relaxed) & VERSION != 0
    {
        version();
    }
    wanted & subsystem as u32 != 0
}

/// Logs a warning.
#[track_caller]
pub(crate) fn warn(text: impl FnOnce() -> String) {
    if warnings_enabled() {
        warning(Location::caller(), &text());
    }
}

fn warning(place: &Location<'_>, text: &str) {
    // Relative to the crate, whose location says nothing about it.
    let file = place.file().rsplit_once("src/").map_or(place.file(), |(_, file)| file);
    let settings = settings();
    let (who, line) = (settings.who(WARNING_LINES), place.line());
    settings.write(&format!("\n{who} {file}:{line} NCCL WARN {text}\n"));
}

pub(crate) fn warnings_enabled() -> bool {
    enabled() & WARNINGS != 0
}

fn version() {
    let text =
        format!("NCCL version {NCCL_MAJOR}.{NCCL_MINOR}.{NCCL_PATCH}+cpu{}", env!("CARGO_PKG_VERSION"));
    let settings = settings();
    if settings.informs() { information(&text) } else { settings.write(&format!("{text}\n")) }
}

fn information(text: &str) {
    let settings = settings();
    settings.write(&format!("{} NCCL INFO {text}\n", settings.who(INFORMATION_LINES)));
}

fn enabled() -> u32 {
    match ENABLED.load(Relaxed) {
        UNREAD => {
            let first = settings().enabled();
            // Whoever was faster has it from the same settings, and may have shown the version already.
            ENABLED.compare_exchange(UNREAD, first, Relaxed, Relaxed).map_or_else(|now| now, |_| first)
        }
        wanted => wanted,
    }
}

pub(crate) fn settings() -> Arc<Settings> {
    let mut settings = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(
        settings.get_or_insert_with(|| Arc::new(Settings::read(libnccl::internal::environment::variable))),
    )
}

/// Lets the environment be read again before the next line.
pub(crate) fn reset() {
    *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    ENABLED.store(UNREAD, Relaxed);
}

/// The settings from the environment.
#[derive(Debug)]
pub(crate) struct Settings {
    /// A name of [`LEVELS`], or nothing.
    level: Option<&'static str>,
    subsystems: u32,
    /// The format of the time stamp.
    stamp: CString,
    /// The levels whose lines start with a time stamp.
    stamped: u32,
    file_name: OsString,
    file: Option<File>,
    host: String,
}

impl Settings {
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let level = text("NCCL_DEBUG").and_then(|wanted| {
            let level = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted.trim()))?;
            Some(level.0)
        });
        let subsystems = text("NCCL_DEBUG_SUBSYS").and_then(|names| parse_list(&names, &SUBSYSTEMS));
        let stamped = text("NCCL_DEBUG_TIMESTAMP_LEVELS").and_then(|names| parse_list(&names, &LEVELS));
        let stamp =
            variable("NCCL_DEBUG_TIMESTAMP_FORMAT").and_then(|format| CString::new(format.into_vec()).ok());
        let file_name = variable("NCCL_DEBUG_FILE").unwrap_or_default();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim_end().split('.').next().unwrap_or_default().to_owned();
        let mut settings = Self {
            level,
            subsystems: subsystems.unwrap_or(DEFAULT_SUBSYSTEMS),
            stamp: stamp.unwrap_or_else(|| DEFAULT_STAMP.into()),
            stamped: stamped.unwrap_or(DEFAULT_STAMPED),
            file_name,
            file: None,
            host,
        };
        if settings.warns() && !settings.file_name.is_empty() {
            settings.file = open(&expand(&settings.file_name, &settings.host)).ok();
        }
        settings
    }

    fn warns(&self) -> bool {
        self.level.is_some_and(|level| level != "VERSION")
    }

    fn informs(&self) -> bool {
        matches!(self.level, Some("INFO" | "ABORT" | "TRACE"))
    }

    /// Returns the bits of [`ENABLED`]. Without any subsystem, NCCL suppresses warnings, too.
    fn enabled(&self) -> u32 {
        if self.subsystems == 0 || self.level.is_none() {
            return 0;
        }
        let information = if self.informs() { self.subsystems } else { 0 };
        information | VERSION | if self.warns() { WARNINGS } else { 0 }
    }

    /// Returns the prefix of a line. The number is the device, which ranks do not have here; NCCL prints 0 then.
    fn who(&self, lines: u32) -> String {
        let stamp = if self.stamped & lines == 0 { String::new() } else { now(&self.stamp) };
        format!("{stamp}{}:{}:{} [0]", self.host, std::process::id(), thread())
    }

    /// Writes lines in one call, so that those of several ranks do not mix. A failure cannot be reported.
    fn write(&self, lines: &str) {
        let _ = match &self.file {
            Some(file) => (&*file).write_all(lines.as_bytes()),
            None => {
                let mut output = io::stdout().lock();
                output.write_all(lines.as_bytes()).and_then(|()| output.flush())
            }
        };
    }

    /// Returns the level's name, or NCCL's placeholder for none.
    pub(crate) fn level(&self) -> &'static str {
        self.level.unwrap_or("<unknown>")
    }

    pub(crate) fn subsystems(&self) -> String {
        show_list(self.subsystems, &SUBSYSTEMS)
    }

    pub(crate) fn file_name(&self) -> &OsStr {
        &self.file_name
    }

    pub(crate) fn stamp(&self) -> &CStr {
        &self.stamp
    }

    pub(crate) fn stamped(&self) -> String {
        show_list(self.stamped, &LEVELS)
    }
}

/// Returns the bits of the listed names, or of the others after a `^`. One unknown name invalidates the list.
fn parse_list(list: &str, names: &[(&str, u32)]) -> Option<u32> {
    let all = names.iter().fold(0, |bits, (_, bit)| bits | bit);
    let list = list.trim();
    let (listed, inverted) = list.strip_prefix('^').map_or((list, 0), |listed| (listed, all));
    let bits =
        listed.split(',').map(str::trim).filter(|name| !name.is_empty()).try_fold(0, |bits, wanted| {
            let known = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, bit)| *bit);
            known.or_else(|| wanted.eq_ignore_ascii_case("ALL").then_some(all)).map(|bit| bits | bit)
        })?;
    Some(bits ^ inverted)
}

fn show_list(bits: u32, names: &[(&str, u32)]) -> String {
    let listed: Vec<&str> = names.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect();
    match listed.len() {
        0 => "NONE".into(),
        length if length == names.len() => "ALL".into(),
        _ => listed.join(","),
    }
}

/// Expands a file's name: `%h` is the host, `%p` the pid, `%%` a percent sign.
fn expand(name: &OsStr, host: &str) -> OsString {
    let process = std::process::id().to_string();
    let (mut expanded, mut rest) = (Vec::new(), name.as_bytes());
    while let [byte, after @ ..] = rest {
        let known: Option<&[u8]> = match (byte, after.first()) {
            (b'%', Some(b'h')) => Some(host.as_bytes()),
            (b'%', Some(b'p')) => Some(process.as_bytes()),
            (b'%', Some(b'%')) => Some(b"%"),
            _ => None,
        };
        expanded.extend_from_slice(known.unwrap_or(&[*byte]));
        rest = if known.is_some() { &after[1..] } else { after };
    }
    OsString::from_vec(expanded)
}

/// Opens a file and empties it, as NCCL does. Writes append, so that processes with one file do not overwrite each other.
fn open(name: &OsStr) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(name)?;
    // A terminal or a pipe has no length.
    let _ = file.set_len(0);
    Ok(file)
}

/// Returns the thread id of this thread.
fn thread() -> String {
    let link = fs::read_link("/proc/thread-self");
    let number = link.ok().and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    number.unwrap_or_else(|| std::process::id().to_string())
}

/// Formats the local time, by the C library.
pub(crate) fn now(format: &CStr) -> String {
    let (mut broken_down, mut text) = (MaybeUninit::uninit(), [0u8; 256]);
    // SAFETY: `time` stores nothing if it is given NULL.
    let seconds = unsafe { libc::time(ptr::null_mut()) };
    // SAFETY: the result has room for the time.
    if unsafe { libc::localtime_r(&raw const seconds, broken_down.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    // SAFETY: the room is the text's, the format ends, and `localtime_r` has filled the time in.
    let length = unsafe {
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), broken_down.as_ptr())
    };
    String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn level_is_parsed_as_by_nccl() {
        for (level, name, bits) in [
            ("", "<unknown>", 0),
            ("INF0", "<unknown>", 0),
            ("ALL", "<unknown>", 0),
            ("version", "VERSION", VERSION),
            (" Warn ", "WARN", VERSION | WARNINGS),
            ("ATTN", "ATTN", VERSION | WARNINGS),
            ("INFO", "INFO", VERSION | WARNINGS | DEFAULT_SUBSYSTEMS),
            ("abort", "ABORT", VERSION | WARNINGS | DEFAULT_SUBSYSTEMS),
            ("TRACE", "TRACE", VERSION | WARNINGS | DEFAULT_SUBSYSTEMS),
        ] {
            let settings = settings(&[("NCCL_DEBUG", level)]);
            assert_eq!((settings.level(), settings.enabled()), (name, bits), "{level}");
        }
        assert_eq!(settings(&[]).enabled(), 0);
    }

    #[test]
    fn subsystem_list_is_parsed_as_by_nccl() {
        for (list, text, bits) in [
            ("ALL", "ALL", 0x3_ffff),
            ("all,INIT", "ALL", 0x3_ffff),
            ("init", "INIT", 1),
            (" COLL , Init,", "INIT,COLL", 3),
            ("ALLOC_HOST,ALLOC", "ALLOC,ALLOC_HOST", 0x2_0100),
            (
                "^INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,NVLS,REG,PROFILE,RAS,DESTROY,PROXY",
                "ENV,ALLOC,ALLOC_HOST,CALL,BOOTSTRAP",
                0x2_1380,
            ),
            ("", "NONE", 0),
            ("^ALL", "NONE", 0),
            ("NOPE", "INIT,ENV,BOOTSTRAP", 0x1081),
            ("COLL,NOPE", "INIT,ENV,BOOTSTRAP", 0x1081),
            ("INIT,^COLL", "INIT,ENV,BOOTSTRAP", 0x1081),
        ] {
            let settings = settings(&[("NCCL_DEBUG_SUBSYS", list), ("NCCL_DEBUG", "INFO")]);
            assert_eq!((settings.subsystems(), settings.subsystems), (text.into(), bits), "{list}");
            assert_eq!(settings.enabled(), if bits == 0 { 0 } else { bits | WARNINGS | VERSION }, "{list}");
        }
        let stamped = |list| settings(&[("NCCL_DEBUG_TIMESTAMP_LEVELS", list)]).stamped();
        assert_eq!(
            ["", "^warn", "WARN,NOPE"].map(stamped),
            ["NONE", "VERSION,ATTN,INFO,ABORT,TRACE", "WARN,ATTN"]
        );
    }

    #[test]
    fn file_name_placeholders_are_expanded() {
        let process = std::process::id();
        let expanded = expand(OsStr::new("%h.%p %%h%x%p%"), "host").into_string().unwrap();
        assert_eq!(expanded, format!("host.{process} %h%x{process}%"));
        assert_eq!(expand(OsStr::from_bytes(b"\xff%"), ""), OsStr::from_bytes(b"\xff%"));
    }

    #[test]
    fn time_stamp_is_the_clocks_time() {
        let seconds: u64 = now(c"%s").parse().unwrap();
        let clock = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!(seconds.abs_diff(clock) < 60, "{seconds} {clock}");
        assert_eq!(now(c""), "");
        // Too long a text is none.
        assert_eq!(now(&CString::new("%F".repeat(100)).unwrap()), "");
    }

    /// Logs three lines, in the process that [`output`] starts.
    #[test]
    fn child_process_logs_three_lines() {
        if std::env::var_os("LIBNCCL_TEST_DEBUG").is_some() {
            println!("\n<<<");
            info(Collective, || "the first".into());
            info(Init, || "the second".into());
            info(Init, || "the third".into());
            // SAFETY: this process has one test, and so one thread that knows of the environment.
            unsafe { std::env::set_var("NCCL_DEBUG", "") };
            reset();
            info(Init, || "a fourth, which is not logged any more".into());
            println!(">>>");
        }
    }

    fn output(level: &str, subsystems: &str) -> String {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "diag::debug::tests::child_process_logs_three_lines",
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("LIBNCCL_TEST_DEBUG", "1")
            .env("NCCL_DEBUG", level)
            .env("NCCL_DEBUG_SUBSYS", subsystems)
            .env_remove("NCCL_DEBUG_FILE")
            .env_remove("NCCL_DEBUG_TIMESTAMP_LEVELS")
            .output()
            .unwrap();
        let text = String::from_utf8(child.stdout).unwrap();
        let lines = text.split_once("<<<\n").unwrap().1.split_once(">>>\n").unwrap().0;
        // The process is another one each time, and so is its thread.
        lines
            .lines()
            .map(|line| line.split_once(" [0] ").map_or(line, |(_, rest)| rest))
            .collect::<Vec<_>>()
            .join("|")
    }

    #[test]
    fn version_is_logged_once() {
        let header = libnccl::Version::HEADER;
        let version = format!("NCCL version {header}+cpu{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(output("", "ALL"), "");
        assert_eq!(output("VERSION", "ALL"), version);
        assert_eq!(output("WARN", "COLL"), version);
        assert_eq!(
            output("INFO", "ALL"),
            format!("NCCL INFO the first|NCCL INFO {version}|NCCL INFO the second|NCCL INFO the third")
        );
        assert_eq!(output("INFO", "COLL"), format!("NCCL INFO the first|NCCL INFO {version}"));
        assert_eq!(output("INFO", "^ALL"), "");
    }
}
