use std::sync::Arc;

use super::recorder::Recorder;
use crate::Communicator;

impl Communicator {
    /// Records the operations from now on: the last ones, at least so many `entries`, up to a million, of 64 bytes each. Once
    /// it records, it does so until its end, and further calls return the same recorder.
    ///
    /// With the environment variable `LIBNCCL_RECORDER`, a number of entries, all communicators of the process are recorded
    /// from their start. For an example, see [`Recorder`].
    pub fn record(&self, entries: usize) -> Recorder {
        self.recorder().unwrap_or_else(|| {
            let recorder = Recorder::of_this_process(self.membership(), entries);
            self.shared().observers.add(self.membership(), Arc::new(recorder.clone()));
            recorder
        })
    }

    /// Returns the recorder, if the operations are recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<Recorder> {
        self.shared().observers.find().cloned()
    }
}
