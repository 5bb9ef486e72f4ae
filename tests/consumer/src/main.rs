//! Prints which library `Nccl::load` returns, and the length of an id that it creates.

fn main() {
    match libnccl::Nccl::load() {
        Ok(nccl) => {
            let backend = match nccl.backend() {
                libnccl::Backend::Linked { .. } => "linked",
                libnccl::Backend::Loaded { .. } => "loaded",
                _ => "other",
            };
            let id = nccl.unique_id().map_or_else(|error| error.to_string(), |id| id.to_string());
            println!("{backend} {} {}", nccl.version(), id.len());
        }
        Err(libnccl::LoadError::NoBackend) => println!("no backend"),
        Err(error) => println!("{error}"),
    }
}
