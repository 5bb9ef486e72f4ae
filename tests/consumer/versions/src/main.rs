//! Prints the library's version and the length of an id, through each of two versions of libnccl.

macro_rules! describe {
    ($version:ident) => {
        match $version::Nccl::linked() {
            Ok(nccl) => {
                let id = nccl.unique_id().map_or_else(|error| error.to_string(), |id| id.to_string().len().to_string());
                format!("{} {id}", nccl.version())
            }
            Err(error) => error.to_string(),
        }
    };
}

fn main() {
    println!("newer: {}, older: {}", describe!(newer), describe!(older));
}
