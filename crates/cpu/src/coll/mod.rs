//! Collectives, and the parts common to all operations. This module does not depend on communicators or groups: an operation is a future
//! that `sync::executor` polls in the [context](crate::shm::call_context) of a rank.

pub(crate) mod call;
pub(crate) mod collective;
pub(crate) mod operation;
pub(crate) mod plan;
pub(crate) mod wait_report;
