//! Depends on libnccl with feature `link` alone.

use libnccl::{Backend, Nccl};

/// How `Nccl::load` came to its library.
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
