//! The recorder, an observer that keeps a communicator's last operations in a ring buffer.
//!
//! Only the thread that uses the communicator writes; it takes no lock and never waits. Any thread can read at any time.
#![allow(unsafe_code)]

mod clock;
mod document;
mod pytorch;
mod record;
mod ring;
#[cfg(all(unix, feature = "signal"))]
mod signal;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;

use self::document::Document;
use self::record::records;
pub use self::record::{Record, RecordState};
use self::ring::Ring;
use crate::library_file::{self, Identity};
use crate::{private_file, variables};
use libnccl::Communicator;
use libnccl::buffer::MemorySpace;
use libnccl::internal::environment::variable;
use libnccl::observer::{CommunicatorEvent, Membership, Observer, OperationEnd, OperationStart, observe};

/// A recorder of a communicator's last operations. Any thread can read it at any time, even after the communicator is destroyed.
/// See [`RecordExt::record`](crate::RecordExt::record).
///
/// It is an [`Observer`]. An operation is recorded when its method is called, also in a group. Two kinds of calls are not
/// recorded: calls that libnccl's checks reject, and calls that create or destroy reduction operators.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{ReduceOp, StreamRef};
/// use libnccl_observe::{RecordExt, RecordState};
///
/// let comm = libnccl_cpu::nccl().init_all(&[0])?.remove(0);
/// let recorder = comm.record(1000);
/// comm.all_reduce_in_place(&mut [1.0_f32, 2.0], ReduceOp::Sum, StreamRef::DEFAULT)?;
///
/// let records = recorder.records();
/// assert_eq!((records[0].operation, records[0].sent), ("all_reduce_in_place", 2));
/// assert_eq!(records[0].state, RecordState::Completed);
/// assert!(records[0].site.is_some_and(|site| site.file().ends_with(".rs")));
/// println!("{}", recorder.to_json("request"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder {
    recording: Arc<Recording>,
}

struct Recording {
    membership: Membership,
    ring: Ring,
    state: AtomicU8,
    /// Set if the recording also names the C functions.
    is_of_c: bool,
}

/// The state bit of a failed communicator. [`ENDED`] is the bit of a destroyed or aborted one.
const FAILED: u8 = 1;
const ENDED: u8 = 2;

/// The recordings of libnccl's communicators in this process.
static RECORDINGS: Mutex<Vec<Weak<Recording>>> = Mutex::new(Vec::new());

/// Makes the signal in `LIBNCCL_RECORDER_SIGNAL` write the recordings of the process.
#[cfg(all(unix, feature = "signal"))]
fn write_on_signal_of_environment() {
    static START: Once = Once::new();
    let mut started = Ok(());
    START.call_once(|| {
        // The oldest recorder determines the rank of the process.
        let write = || {
            all().first().into_iter().for_each(|recorder| recorder.write_as_the_environment_says("signal"));
        };
        started = signal::on_signal_of_environment(write);
    });
    // Not in the closure above, as a logger may record a communicator, too.
    #[cfg(feature = "log")]
    let _ = started.inspect_err(|error| log::warn!("no recordings on a signal: {error}"));
    #[cfg(not(feature = "log"))]
    drop(started);
}

impl Observer for Recorder {
    #[inline]
    fn on_start(&self, start: &OperationStart<'_>) {
        self.recording.ring.push(start);
    }

    #[inline]
    fn on_end(&self, end: &OperationEnd<'_>) {
        self.recording.ring.end([end.first, end.last], end.result.is_err());
    }

    fn on_communicator(&self, _: &Membership, event: CommunicatorEvent) {
        let Recording { ring, state, .. } = &*self.recording;
        match event {
            CommunicatorEvent::StreamCompleted(stream) => ring.complete(stream),
            CommunicatorEvent::Failed => drop(state.fetch_or(FAILED, Relaxed)),
            CommunicatorEvent::Aborted | CommunicatorEvent::Ended => drop(state.fetch_or(ENDED, Relaxed)),
            CommunicatorEvent::Stalled => self.write_as_the_environment_says("stalled"),
            CommunicatorEvent::TimedOut => self.write_as_the_environment_says("timeout"),
            _ => {}
        }
    }
}

impl Recorder {
    /// Creates a recorder for a communicator that was not created by libnccl. The caller must intercept NCCL's functions, and
    /// call the recorder's [`Observer`] methods. For libnccl's communicators, see
    /// [`RecordExt::record`](crate::RecordExt::record).
    #[must_use]
    pub fn new(membership: Membership, entries: usize) -> Self {
        Self::of(membership, entries, true)
    }

    fn of(membership: Membership, entries: usize, is_of_c: bool) -> Self {
        let (ring, state) = (Ring::new(entries), AtomicU8::new(0));
        Self { recording: Arc::new(Recording { membership, ring, state, is_of_c }) }
    }

    /// Creates the recorder of a libnccl communicator, and adds it to the recorders of this process.
    fn of_this_process(membership: &Membership, entries: usize) -> Self {
        let recorder = Self::of(membership.clone(), entries, false);
        let mut recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
        recordings.retain(|recording| recording.strong_count() > 0);
        recordings.push(Arc::downgrade(&recorder.recording));
        // This may call a logger, which may request the recordings.
        drop(recordings);
        #[cfg(all(unix, feature = "signal"))]
        write_on_signal_of_environment();
        recorder
    }

    /// Records all communicators that this process creates from now on, if the environment variable `LIBNCCL_RECORDER` is a
    /// positive number. This number is the argument `entries` of [`RecordExt::record`](crate::RecordExt::record). Only the first
    /// call has an effect, so libraries may call it as well as the program.
    pub fn record_from_env() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let entries = variable(variables::RECORDER).and_then(|text| text.to_str()?.trim().parse().ok());
            if let Some(entries) = entries.filter(|entries| *entries > 0) {
                observe(move |membership| Some(Arc::new(Self::of_this_process(membership, entries))));
            }
        });
    }

    /// Returns the communicator's id, rank and size.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.recording.membership
    }

    /// Returns the recorded operations, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        records(&self.recording.ring, self.membership().memory_space == MemorySpace::Host)
    }

    /// Returns the [number](Record::number) of the last recorded operation; 0 if no operation was recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.recording.ring.last()
    }

    /// Returns the recorded operations as JSON, in the format that `docs/hangs.md` describes. `reason` becomes a field of the
    /// JSON object.
    #[must_use]
    pub fn to_json(&self, reason: &str) -> String {
        Self::list_to_json(reason, std::slice::from_ref(self))
    }

    /// Returns the recorded operations of several communicators, in the format of [`to_json`](Self::to_json).
    #[must_use]
    pub fn list_to_json(reason: &str, recorders: &[Self]) -> String {
        document(reason, recorders).to_json()
    }

    /// Returns the recorded operations of all communicators of this process, in the format of [`to_json`](Self::to_json). A
    /// destroyed communicator is included as long as a [`Recorder`] of it exists.
    #[must_use]
    pub fn all_to_json(reason: &str) -> String {
        Self::list_to_json(reason, &all())
    }

    /// Returns the recorded operations in the format of PyTorch's flight recorder, a Python pickle. PyTorch's analyzer reads a
    /// directory with one file per rank. Each file's name must end in the number of the rank. The following command analyzes the
    /// files `rank0`, `rank1` and so on: `python -m torch.distributed.flight_recorder.fr_trace --prefix rank DIRECTORY`.
    #[must_use]
    pub fn to_pytorch(&self) -> Vec<u8> {
        to_pytorch(std::slice::from_ref(self))
    }

    /// Returns the recorded operations of all communicators of this process, in the format of [`to_pytorch`](Self::to_pytorch).
    /// The process must have only one rank, because the format has one file per rank.
    #[must_use]
    pub fn all_to_pytorch() -> Vec<u8> {
        to_pytorch(&all())
    }

    /// Writes [`all_to_json`](Self::all_to_json) to a file.
    ///
    /// If the environment variable `LIBNCCL_RECORDER_FILE` is set, a file is also written when a recorded communicator times out
    /// or a [`Watchdog`](crate::Watchdog) finds it stuck in a call. The path of this file is the variable's value followed by the
    /// rank and `.json`. An existing file is replaced. Only the owner can read the new file.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub fn write_all(reason: &str, path: &Path) -> io::Result<()> {
        write_in_turn(reason, |json| fs::write(path, json))
    }

    /// Installs a panic hook that writes [`all_to_json`](Self::all_to_json) to a file, and then calls the previous hook. A second
    /// call only changes the path.
    ///
    /// A thread that is panicking cannot install a hook, so a call in such a thread only changes the path.
    pub fn write_on_panic(path: PathBuf) {
        static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);
        static HOOK: Once = Once::new();
        *PATH.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
        if thread::panicking() {
            return;
        }
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let path = PATH.lock().unwrap_or_else(PoisonError::into_inner).clone();
                path.into_iter().for_each(|path| drop(Self::write_all("panic", &path)));
                before(info);
            }));
        });
    }

    /// Starts a thread that writes [`all_to_json`](Self::all_to_json) to a file whenever the process receives `signal`. The
    /// signal's default action is disabled. Handlers that the program installed earlier still run.
    ///
    /// A signal can also be selected with the environment variable `LIBNCCL_RECORDER_SIGNAL`, whose value is `USR1` or `USR2`.
    /// When the process receives this signal, it writes the file that `LIBNCCL_RECORDER_FILE` specifies (see
    /// [`write_all`](Self::write_all)). The signal is handled as soon as a communicator of the process is recorded.
    ///
    /// ```no_run
    /// use libnccl_observe::Recorder;
    ///
    /// const SIGUSR1: i32 = 10; // On Linux; the crate libc has it for all systems.
    /// Recorder::write_on_signal(SIGUSR1, "/tmp/recording.json".into())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the signal cannot be handled, such as `SIGKILL` or `SIGSEGV`. The system's error if the
    /// signal does not exist, or if a thread or a file descriptor cannot be created.
    #[cfg(all(unix, feature = "signal"))]
    #[cfg_attr(docsrs, doc(cfg(all(unix, feature = "signal"))))]
    pub fn write_on_signal(signal: i32, path: PathBuf) -> io::Result<()> {
        signal::on_signal(signal, move || drop(Self::write_all("signal", &path)))
    }

    /// Writes the records of the process to the path in `LIBNCCL_RECORDER_FILE`, if it is set.
    #[cold]
    fn write_as_the_environment_says(&self, reason: &str) {
        if let Some(mut path) = variable(variables::RECORDER_FILE) {
            path.push(format!("{}.json", self.membership().rank));
            // The caller reports the error of the call itself.
            let _ = write_in_turn(reason, |json| private_file::write(Path::new(&path), json.as_bytes()));
        }
    }

    fn to_document(&self) -> Document {
        let Recording { membership, ring, state, is_of_c } = &*self.recording;
        let Membership { id, name, rank, size, memory_space, .. } = membership;
        let state = match state.load(Relaxed) {
            state if state & ENDED != 0 => "ended",
            state if state & FAILED != 0 => "failed",
            _ if ring.is_inside() => "in a call",
            _ => "idle",
        };
        Document::object([
            ("id", id.map(|id| id.to_string()).into()),
            ("name", name.clone().into()),
            ("size", (*size).into()),
            ("rank", (*rank).into()),
            ("memory", memory_space.to_string().into()),
            ("state", state.into()),
            ("capacity", ring.capacity().into()),
            ("count", ring.last().into()),
            (
                "records",
                Document::List(self.records().iter().map(|record| record.to_document(*is_of_c)).collect()),
            ),
        ])
    }
}

/// Methods that record the operations of a [`Communicator`].
pub trait RecordExt {
    /// Records the communicator's operations from now on. The recorder keeps at least the last `entries` operations, and needs 64
    /// bytes for each. If `entries` is above 2^20, 2^20 is used. Recording stops when the communicator is destroyed. Further
    /// calls return the same recorder.
    ///
    /// [`Recorder::record_from_env`] records all communicators of the process from their start. For an example, see
    /// [`Recorder`].
    fn record(&self, entries: usize) -> Recorder;

    /// Returns the communicator's recorder, or `None` if the communicator is not recorded.
    #[must_use]
    fn recorder(&self) -> Option<Recorder>;
}

impl RecordExt for Communicator {
    fn record(&self, entries: usize) -> Recorder {
        self.recorder().unwrap_or_else(|| {
            let recorder = Recorder::of_this_process(self.membership(), entries);
            self.observe(Arc::new(recorder.clone()));
            recorder
        })
    }

    fn recorder(&self) -> Option<Recorder> {
        self.abort_handle().observer().cloned()
    }
}

/// Calls `write` with the records of all communicators of this process, one call at a time: a timeout and a signal may write the
/// same file.
fn write_in_turn(reason: &str, write: impl FnOnce(String) -> io::Result<()>) -> io::Result<()> {
    static TURN: Mutex<()> = Mutex::new(());
    let json = Recorder::all_to_json(reason);
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    write(json)
}

/// Returns the recorders of all communicators of this process.
fn all() -> Vec<Recorder> {
    let recordings = RECORDINGS.lock().unwrap_or_else(PoisonError::into_inner);
    recordings.iter().filter_map(Weak::upgrade).map(|recording| Recorder { recording }).collect()
}

fn to_pytorch(recorders: &[Recorder]) -> Vec<u8> {
    let group = |recorder: &Recorder| {
        let Membership { id, name, size, rank, nccl, .. } = recorder.membership();
        pytorch::Group {
            id: id.map_or_else(|| "unknown".into(), |id| id.to_string()),
            name: name.clone().unwrap_or_else(|| "undefined".into()),
            size: *size,
            rank: *rank,
            nccl: nccl.to_string(),
            records: recorder.records(),
        }
    };
    pytorch::dump(&recorders.iter().map(group).collect::<Vec<_>>()).to_pickle()
}

/// Returns the identity of a library's file, and caches it. Only a file without a build id is hashed, because NCCL has hundreds
/// of megabytes and a timeout waits for the recording.
fn library_document(path: &Arc<Path>) -> Document {
    static KNOWN: Mutex<Option<(Arc<Path>, Document)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, document)) = known.as_ref().filter(|(known, _)| known == path) {
        return document.clone();
    }
    let file = File::open(path).ok();
    let Identity { size, build_id } =
        file.as_ref().and_then(|file| Identity::of(file).ok()).unwrap_or_default();
    let hashed = file.as_ref().filter(|_| build_id.is_none());
    let hash = hashed.and_then(|file| library_file::hash(file).ok());
    let document = Document::object([
        ("path", path.to_string_lossy().into_owned().into()),
        ("size", file.map_or(Document::Null, |_| size.into())),
        ("build_id", build_id.into()),
        ("hash", hash.map(|hash| format!("{hash:016x}")).into()),
    ]);
    known.insert((Arc::clone(path), document)).1.clone()
}

/// Returns the dump of this process: its NCCL version and its communicators.
fn document(reason: &str, recorders: &[Recorder]) -> Document {
    let membership = recorders.first().map(Recorder::membership);
    let nccl = membership.map(|membership| membership.nccl.to_string());
    let library = membership.and_then(|membership| membership.library.clone());
    Document::object([
        ("format", "libnccl recorder".into()),
        ("version", 1_u64.into()),
        ("reason", reason.into()),
        ("time_ns", clock::now().into()),
        ("process", process::id().into()),
        ("nccl", nccl.into()),
        ("library", library.map_or(Document::Null, |path| library_document(&path))),
        ("communicators", Document::List(recorders.iter().map(Recorder::to_document).collect())),
    ])
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("count", &self.count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::{env, fs};

    use super::library_document;
    use crate::library_file::Identity;

    #[test]
    fn only_a_library_without_a_build_id_is_hashed() {
        let document = |path: &Path| library_document(&Arc::from(path)).to_json();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("libnccl.so.2");
        let missing = document(&file);
        assert!(missing.contains(r#""size":null,"build_id":null,"hash":null"#), "{missing}");
        fs::write(directory.path().join("other"), "no build id").unwrap();
        let without = document(&directory.path().join("other"));
        assert!(without.contains(r#""size":11,"build_id":null,"hash":""#), "{without}");
        let program = env::current_exe().unwrap();
        if Identity::of(&fs::File::open(&program).unwrap()).unwrap().build_id.is_some() {
            let with = document(&program);
            assert!(with.contains(r#""hash":null"#) && !with.contains(r#""build_id":null"#), "{with}");
        }
    }
}
