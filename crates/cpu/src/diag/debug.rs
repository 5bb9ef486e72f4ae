//! `NCCL_DEBUG` logging in NCCL's line format, which programs parse.
//!
//! The environment is read before the first line, and again after a [`reset`].
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, PoisonError};

use libnccl::internal::environment::variable;
use libnccl::sys::{NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH};

/// The subsystem of a line, for the filter `NCCL_DEBUG_SUBSYS`. The bits match [`SUBSYSTEMS`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Subsystem {
    /// Creation of communicators. The first such line is preceded by NCCL's version.
    Init = 1 << 0,
    Collective = 1 << 1,
    PointToPoint = 1 << 2,
    SharedMemory = 1 << 3,
    Environment = 1 << 7,
    Allocation = 1 << 8,
    Bootstrap = 1 << 12,
    Registration = 1 << 13,
    Ras = 1 << 15,
    /// Lines that belong to both INIT and NET.
    Network = 1 << 0 | 1 << 4,
}

use Subsystem::{Bootstrap, Environment, Init};

/// NCCL's subsystems, in the order of NCCL's bits.
const SUBSYSTEMS: &str = "INIT,COLL,P2P,SHM,NET,GRAPH,TUNING,ENV,ALLOC,CALL,PROXY,NVLS,BOOTSTRAP,REG,PROFILE,RAS,DESTROY,ALLOC_HOST";
const ALL_SUBSYSTEMS: u32 = (1 << 18) - 1;
const DEFAULT_SUBSYSTEMS: u32 = Init as u32 | Bootstrap as u32 | Environment as u32;

/// The enabled lines: the subsystems' bits, and the bits below.
static ENABLED: AtomicU32 = AtomicU32::new(UNREAD);
const UNREAD: u32 = 1 << 31;
const WARNINGS: u32 = 1 << 30;
const VERSION: u32 = 1 << 29;

/// The settings since the last [`reset`]. A thread may still write a line with earlier settings.
static SETTINGS: Mutex<Option<Arc<Settings>>> = Mutex::new(None);

pub(crate) fn info(subsystem: Subsystem, text: impl FnOnce() -> String) {
    let bits = subsystem as u32;
    if bits & Init as u32 != 0 {
        begin();
    }
    if enabled() & bits != 0 {
        settings().inform(&text());
    }
}

/// Logs the version once.
pub(crate) fn begin() {
    if enabled() & VERSION != 0 {
        settings().write_version();
    }
}

#[track_caller]
pub(crate) fn warn(text: impl FnOnce() -> String) {
    if enabled() & WARNINGS != 0 {
        settings().warn(Location::caller(), &text());
    }
}

/// Writes a warning to stderr, and to the log.
#[track_caller]
pub(crate) fn warn_on_stderr(text: &str) {
    // In one call, so that lines of several ranks do not interleave. A closed stderr must not cause a panic.
    let _ = io::stderr().write_all(format!("libnccl-cpu: {text}\n").as_bytes());
    warn(|| text.to_owned());
}

fn enabled() -> u32 {
    match ENABLED.load(Relaxed) {
        UNREAD => {
            let enabled = settings().enabled;
            ENABLED.store(enabled, Relaxed);
            enabled
        }
        enabled => enabled,
    }
}

pub(crate) fn settings() -> Arc<Settings> {
    let mut settings = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(settings.get_or_insert_with(|| Arc::new(Settings::read())))
}

/// Makes the next line read the environment again.
pub(crate) fn reset() {
    *SETTINGS.lock().unwrap_or_else(PoisonError::into_inner) = None;
    ENABLED.store(UNREAD, Relaxed);
}

pub(crate) struct Settings {
    /// The level's name. Levels that only NCCL has map to the nearest level here.
    pub(crate) level: &'static CStr,
    /// The value for [`ENABLED`].
    enabled: u32,
    file: Option<File>,
    host: String,
    version: Once,
}

impl Settings {
    fn read() -> Self {
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let subsystems = text("NCCL_DEBUG_SUBSYS").and_then(|names| parse_subsystems(&names));
        let subsystems = subsystems.unwrap_or(DEFAULT_SUBSYSTEMS);
        let level = text("NCCL_DEBUG").unwrap_or_default().trim().to_ascii_uppercase();
        let (level, enabled) = match level.as_str() {
            "VERSION" => (c"VERSION", VERSION),
            "WARN" | "ATTN" => (c"WARN", VERSION | WARNINGS),
            "INFO" | "ABORT" | "TRACE" => (c"INFO", VERSION | WARNINGS | subsystems),
            _ => (c"<unknown>", 0),
        };
        // Without any subsystem, NCCL also suppresses warnings.
        let enabled = if subsystems == 0 { 0 } else { enabled };
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = host.trim_end().split('.').next().unwrap_or_default().to_owned();
        let file = text("NCCL_DEBUG_FILE").filter(|name| enabled & WARNINGS != 0 && !name.is_empty());
        let file = file.and_then(|name| open(&name, &host).ok());
        Self { level, enabled, file, host, version: Once::new() }
    }

    /// Returns the prefix of a line. The number in brackets is the device: always 0, as in NCCL for a thread without a device.
    fn prefix(&self) -> String {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        format!("{}:{}:{thread} [0]", self.host, std::process::id())
    }

    fn inform(&self, text: &str) {
        self.write(&format!("{} NCCL INFO {text}\n", self.prefix()));
    }

    fn warn(&self, place: &Location<'_>, text: &str) {
        // Relative to the crate, whose location is irrelevant.
        let file = place.file().rsplit_once("src/").map_or(place.file(), |(_, file)| file);
        let (time, prefix, line) = (now(), self.prefix(), place.line());
        self.write(&format!("\n[{time}] {prefix} {file}:{line} NCCL WARN {text}\n"));
    }

    fn write_version(&self) {
        self.version.call_once(|| {
            let version = env!("CARGO_PKG_VERSION");
            let text = format!("NCCL version {NCCL_MAJOR}.{NCCL_MINOR}.{NCCL_PATCH}+cpu{version}");
            if self.level == c"INFO" { self.inform(&text) } else { self.write(&format!("{text}\n")) }
        });
    }

    /// Writes lines in one call, so that lines of several ranks do not interleave. Failures are ignored.
    fn write(&self, lines: &str) {
        let _ = match &self.file {
            Some(file) => (&*file).write_all(lines.as_bytes()),
            None => {
                let mut output = io::stdout().lock();
                output.write_all(lines.as_bytes()).and_then(|()| output.flush())
            }
        };
    }
}

/// Returns the bits of the listed names, or of all other names after a `^`. One unknown name invalidates the list.
fn parse_subsystems(list: &str) -> Option<u32> {
    let list = list.trim().to_ascii_uppercase();
    let (listed, inverted) = list.strip_prefix('^').map_or((&*list, 0), |listed| (listed, ALL_SUBSYSTEMS));
    let mut bits = 0;
    for wanted in listed.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        bits |= match SUBSYSTEMS.split(',').position(|name| name == wanted) {
            Some(bit) => 1 << bit,
            None if wanted == "ALL" => ALL_SUBSYSTEMS,
            None => return None,
        };
    }
    Some(bits ^ inverted)
}

/// Opens a file and truncates it, as NCCL does. `%h` in its name is replaced by the host, `%p` by the pid, `%%` by `%`. Writes append, so that
/// processes that share a file do not overwrite each other's lines.
fn open(name: &str, host: &str) -> io::Result<File> {
    let process = std::process::id().to_string();
    let parts = name.split("%%").map(|part| part.replace("%p", &process).replace("%h", host));
    let name = parts.collect::<Vec<_>>().join("%");
    let file = OpenOptions::new().append(true).create(true).open(name)?;
    // A terminal or a pipe has no length.
    let _ = file.set_len(0);
    Ok(file)
}

/// Returns the local time as `YYYY-MM-DD hh:mm:ss`.
pub(crate) fn now() -> String {
    let mut time = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: `time` stores nothing if its argument is NULL.
    let seconds = unsafe { libc::time(ptr::null_mut()) };
    // SAFETY: a valid time, and space for the result.
    if unsafe { libc::localtime_r(&raw const seconds, time.as_mut_ptr()) }.is_null() {
        return String::new();
    }
    // SAFETY: `localtime_r` has written `time`.
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = unsafe { time.assume_init() };
    let (year, month) = (tm_year + 1900, tm_mon + 1);
    format!("{year}-{month:02}-{tm_mday:02} {tm_hour:02}:{tm_min:02}:{tm_sec:02}")
}
