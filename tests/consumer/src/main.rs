//! Prints which library `Nccl::load` returns, and the length of an id that it creates.

fn main() {
    match libnccl::Nccl::load() {
        Ok(nccl) => {
            let backend = match nccl.backend() {
                libnccl::Backend::Linked { .. } => "linked",
                libnccl::Backend::Loaded { .. } => "loaded",
                _ => "other",
            };
            let length = |id: libnccl::UniqueId| id.to_string().len().to_string();
            let id = nccl.unique_id().map_or_else(|error| error.to_string(), length);
            println!("{backend} {} {id}", nccl.version());
        }
        Err(libnccl::error::LoadError::NoBackend) => println!("no backend"),
        Err(error) => println!("{error}"),
    }
}
