use super::communicator::Communicator;
use super::recorder::{self, Recorder};

impl Communicator {
    /// Records the operations from now on: the last ones, at least so many `entries`, up to a million, of 64 bytes each. Once
    /// it records, it does so until its end, and further calls return the same recorder.
    ///
    /// With the environment variable `LIBNCCL_RECORDER`, a number of entries, all communicators of the process are recorded
    /// from their start. For an example, see [`Recorder`].
    pub fn record(&self, entries: usize) -> Recorder {
        recorder::start(&self.shared, entries);
        Recorder::new(&self.shared)
    }

    /// Returns the recorder, if the operations are recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<Recorder> {
        Recorder::of(&self.shared)
    }
}
