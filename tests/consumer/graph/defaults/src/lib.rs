//! Depends on libnccl with its default features.

use libnccl::{Backend, Nccl};

/// Returns the kind of backend that `Nccl::load` chose.
pub fn backend() -> String {
    match Nccl::load() {
        Ok(nccl) => match nccl.backend() {
            Backend::Linked { .. } => "linked".into(),
            Backend::Loaded { .. } => "loaded".into(),
            _ => "other".into(),
        },
        Err(error) => error.to_string(),
    }
}
