use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::thread;

use super::shared::Shared;
use crate::MemorySpace;
use crate::recorder::{CommunicatorDump, Document, Place, Record, process_document, pytorch, records};

/// The recorder of a communicator, readable from any thread at any time: the last operations that the communicator was given,
/// also after its end. See [`Communicator::record`](crate::Communicator::record).
///
/// Operations are recorded when they are called; those that are refused, by a check of this crate, are not. Operations of a
/// group are recorded too. Those of a [`PreMulSum`](crate::PreMulSum) have the name of the reduction.
///
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{RecordState, ReduceOp, StreamRef};
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
    shared: Arc<Shared>,
}

/// The communicators of this process that are recorded.
static RECORDED: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Starts to record a communicator.
pub(super) fn start(shared: &Arc<Shared>, entries: usize) {
    if shared.start_ring(entries, dump) {
        let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.retain(|shared| shared.strong_count() > 0);
        recorded.push(Arc::downgrade(shared));
        // The logger that this may call may ask for the recordings.
        drop(recorded);
        #[cfg(all(unix, feature = "signal"))]
        write_on_signal_of_environment();
    }
}

/// Makes the signal that the environment names write the dump of the process.
#[cfg(all(unix, feature = "signal"))]
fn write_on_signal_of_environment() {
    static START: Once = Once::new();
    let mut started = Ok(());
    START.call_once(|| {
        let write = || {
            // The oldest one gives the rank of the process.
            all().first().into_iter().for_each(|recorder| dump(&recorder.shared, "signal"));
        };
        started = crate::recorder::on_signal_of_environment(write);
    });
    // Not in the closure above, as a logger may record a communicator, too.
    #[cfg(feature = "log")]
    let _ = started.inspect_err(|error| log::warn!("no recordings on a signal: {error}"));
    #[cfg(not(feature = "log"))]
    drop(started);
}

/// Starts to record a communicator if the environment says so.
pub(super) fn start_as_the_environment_says(shared: &Arc<Shared>) {
    static ENTRIES: OnceLock<usize> = OnceLock::new();
    let read = || env::var("LIBNCCL_RECORDER").ok().and_then(|text| text.trim().parse().ok());
    let entries = *ENTRIES.get_or_init(|| read().unwrap_or(0));
    if entries > 0 {
        start(shared, entries);
    }
}

/// Writes the dump of the process if a communicator is recorded, and the environment says where.
#[cold]
pub(super) fn dump(shared: &Arc<Shared>, reason: &str) {
    if shared.ring().is_some()
        && let Some(prefix) = env::var_os("LIBNCCL_RECORDER_FILE")
    {
        let mut path = prefix;
        path.push(format!("{}.json", shared.membership().1));
        // The error of the call is the one that counts.
        let _ = Recorder::write_all(reason, &PathBuf::from(path));
    }
}

impl Recorder {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    pub(super) fn of(shared: &Arc<Shared>) -> Option<Self> {
        shared.ring().map(|_| Self::new(shared))
    }

    /// Returns the operations that the recorder has, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.ring().map_or_else(Vec::new, |ring| records(ring, self.place()))
    }

    /// Returns the number of operations so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shared.ring().map_or(0, |ring| ring.count())
    }

    /// Returns the records as JSON, in the format that `docs/recorder.md` describes. The `reason` is part of it.
    #[must_use]
    pub fn to_json(&self, reason: &str) -> String {
        document(reason, std::slice::from_ref(self)).to_json()
    }

    /// Returns the records of all communicators of this process that are recorded and still exist, as
    /// [`to_json`](Self::to_json) does.
    #[must_use]
    pub fn all_to_json(reason: &str) -> String {
        document(reason, &all()).to_json()
    }

    /// Returns the records in the format of PyTorch's flight recorder, as a pickle. Its analyzer reads a folder with a file for
    /// each rank, whose name ends in the number of the rank:
    /// `python -m torch.distributed.flight_recorder.fr_trace --prefix rank FOLDER`.
    #[must_use]
    pub fn to_pytorch(&self) -> Vec<u8> {
        to_pytorch(std::slice::from_ref(self))
    }

    /// Returns the records of all communicators of this process, as [`to_pytorch`](Self::to_pytorch) does: for a process of
    /// one rank.
    #[must_use]
    pub fn all_to_pytorch() -> Vec<u8> {
        to_pytorch(&all())
    }

    /// Writes [`all_to_json`](Self::all_to_json) to a file.
    ///
    /// With the environment variable `LIBNCCL_RECORDER_FILE`, the start of a path, a timeout of a communicator that is
    /// recorded, and a [`Watchdog`](crate::Watchdog) that finds one in a call for too long, write it to this path and the
    /// number of the rank and `.json`.
    ///
    /// # Errors
    /// That of the file.
    pub fn write_all(reason: &str, path: &Path) -> io::Result<()> {
        // A timeout and a signal may write the same file.
        static TURN: Mutex<()> = Mutex::new(());
        let json = Self::all_to_json(reason);
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(path, json)
    }

    /// Makes each panic of the process write [`all_to_json`](Self::all_to_json) to a file, before what panics did so far.
    ///
    /// The first call has no effect on a thread that is panicking, where Rust does not let it change what panics do.
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

    /// Makes each signal of this number write [`all_to_json`](Self::all_to_json) to a file, on a thread that only does so. The
    /// signal then has no other effect, but for what the program made it do before.
    ///
    /// With the environment variable `LIBNCCL_RECORDER_SIGNAL`, `USR1` or `USR2`, the first communicator of the process that is
    /// recorded makes this signal write the file that `LIBNCCL_RECORDER_FILE` gives, as a timeout does.
    ///
    /// ```no_run
    /// use libnccl::Recorder;
    ///
    /// const SIGUSR1: i32 = 10; // On Linux; the crate libc has it for all systems.
    /// Recorder::write_on_signal(SIGUSR1, "/tmp/recording.json".into())?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a signal that cannot be handled, such as `SIGKILL` or `SIGSEGV`; that of the system,
    /// if there is no such signal or no more threads or files.
    #[cfg(all(unix, feature = "signal"))]
    #[cfg_attr(docsrs, doc(cfg(all(unix, feature = "signal"))))]
    pub fn write_on_signal(signal: i32, path: PathBuf) -> io::Result<()> {
        crate::recorder::on_signal(signal, move || drop(Self::write_all("signal", &path)))
    }

    fn id(&self) -> Option<String> {
        self.shared.identity.to_text()
    }

    fn name(&self) -> Option<String> {
        self.shared.name.as_ref().map(|name| name.to_string_lossy().into_owned())
    }

    fn place(&self) -> Place {
        let (size, rank) = self.shared.membership();
        Place {
            size: size as usize,
            rank: rank as usize,
            is_inside: self.shared.state.is_inside(),
            is_host: self.shared.memory_space == MemorySpace::Host,
        }
    }

    fn to_document(&self) -> Document {
        let state = &self.shared.state;
        let dump = CommunicatorDump {
            id: self.shared.identity.get(),
            name: self.name(),
            place: self.place(),
            memory_space: self.shared.memory_space,
            is_ended: state.is_ended(),
            is_failed: state.is_failed(),
            ring: self.shared.ring(),
        };
        dump.to_document()
    }
}

/// Returns the recorders of all communicators of this process.
fn all() -> Vec<Recorder> {
    let recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.iter().filter_map(Weak::upgrade).map(|shared| Recorder { shared }).collect()
}

fn to_pytorch(recorders: &[Recorder]) -> Vec<u8> {
    let group = |recorder: &Recorder| {
        let place = recorder.place();
        pytorch::Group {
            id: recorder.id().unwrap_or_else(|| "unknown".into()),
            name: recorder.name().unwrap_or_else(|| "undefined".into()),
            size: place.size,
            rank: place.rank,
            nccl: recorder.shared.library.version.to_string(),
            records: recorder.records(),
        }
    };
    pytorch::dump(&recorders.iter().map(group).collect::<Vec<_>>()).to_pickle()
}

fn document(reason: &str, recorders: &[Recorder]) -> Document {
    let version = recorders.first().map(|recorder| recorder.shared.library.version.to_string());
    process_document(reason, version, recorders.iter().map(Recorder::to_document).collect())
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("count", &self.count()).finish_non_exhaustive()
    }
}
