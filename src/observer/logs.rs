#[cfg(feature = "log")]
use super::log;
#[cfg(feature = "tracing")]
use super::tracing;
#[cfg(feature = "tracing")]
use crate::OperationEnd;
use crate::{Observer, OperationStart};

/// The observer of the features `log` and `tracing`.
pub(super) struct Logs;

impl Observer for Logs {
    #[inline]
    fn on_start(&self, start: &OperationStart<'_>) {
        #[cfg(feature = "log")]
        log::on_start(start);
        #[cfg(feature = "tracing")]
        tracing::on_start(start);
    }

    #[cfg(feature = "tracing")]
    #[inline]
    fn on_end(&self, end: &OperationEnd<'_>) {
        tracing::on_end(end);
    }
}
