use std::sync::Arc;

use libnccl::Communicator;

use super::recorder::Recorder;

/// The recorder of a [`Communicator`], as methods of it.
pub trait RecordExt {
    /// Records the operations from now on: the last ones, at least so many `entries`, up to a million, of 64 bytes each. Once
    /// it records, it does so until its end, and further calls return the same recorder.
    ///
    /// [`Recorder::record_from_env`] records all communicators of the process from their start. For an example, see
    /// [`Recorder`].
    fn record(&self, entries: usize) -> Recorder;

    /// Returns the recorder, if the operations are recorded.
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
