use std::path::Path;

use rustix::process::Rlimit;

use super::{Interface, SharedMemory, System};

impl System {
    /// Returns an x86-64 machine whose files are below `root`.
    pub(crate) fn at(root: &Path, environment: &[(&str, &str)]) -> Self {
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Self {
            root: root.into(),
            environment,
            architecture: "x86_64".into(),
            interfaces: Ok(Vec::new()),
            locked_memory: None,
            open_files: Rlimit { current: Some(1024), maximum: Some(1 << 20) },
            stack: Some(8 << 20),
            shared_memory: SharedMemory::default(),
        }
    }
}

impl Interface {
    /// Returns an interface that is `running`, `unplugged` or `down`, with an address or none.
    pub(crate) fn new(name: &str, state: &str, address: Option<&str>) -> Self {
        let addresses = address.iter().map(|address| address.parse().unwrap()).collect();
        Self { name: name.into(), is_up: state != "down", is_running: state == "running", addresses }
    }
}
