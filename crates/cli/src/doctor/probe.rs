//! The outcome of the process in which NCCL was used: what it returned, and NCCL's own log.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The variables that the process has for itself, with their values.
pub(super) const FORCED: [(&str, &str); 3] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_DEBUG_FILE", "/dev/stderr")];

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Probe {
    /// `None` if the process did not get as far as this.
    pub(crate) call: Option<Call>,
    /// The reason why each of these plugins cannot be loaded, by variable.
    pub(crate) plugins: BTreeMap<String, String>,
    #[serde(skip)]
    pub(crate) log: Vec<String>,
    #[serde(skip)]
    pub(crate) failure: Option<String>,
}

/// The result of `ncclGetUniqueId`, and its effect.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: Option<Vec<u8>>,
    pub(crate) problem: Option<String>,
    /// The variables that NCCL added to the environment: the settings in its configuration files.
    pub(crate) added: BTreeMap<String, String>,
    /// The values of NCCL's parameters, for variables that are set.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl Probe {
    /// Returns the address and port at which the ranks meet.
    pub(crate) fn address(&self) -> Option<(IpAddr, u16)> {
        socket_address(self.call.as_ref()?.id.as_ref()?)
    }

    /// Returns the name and the address of the interface in the line `Bootstrap : Using eth0:10.0.0.1<0>`.
    pub(crate) fn interface(&self) -> Option<(&str, IpAddr)> {
        let line = self.log.iter().find(|line| line.contains("Bootstrap"))?;
        let (text, _) = line.split_once("Using ")?.1.split_once('<')?;
        let (name, address) = text.split_once(':')?;
        Some((name, address.split('%').next()?.parse().ok()?))
    }

    /// Returns why the process failed: its end, the library's warnings, and the process's own error.
    pub(super) fn reasons(&self) -> String {
        let failure = self.failure.as_deref().unwrap_or("the process printed no result");
        let errors = self.log.iter().filter(|line| line.starts_with("error: ")).map(String::as_str);
        [failure].into_iter().chain(self.warnings()).chain(errors).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        let warnings = self.log.iter().filter_map(|line| Some(line.split_once("NCCL WARN ")?.1.trim()));
        // Without a driver, every process has this one; the section on the driver has it.
        let mut warnings: Vec<_> = warnings.filter(|text| !text.starts_with("Cuda failure")).collect();
        warnings.dedup();
        warnings.truncate(3);
        warnings
    }

    /// Returns what the CPU backend and the CUDA emulation report of their own variables.
    pub(crate) fn rejected_variables(&self) -> BTreeSet<&str> {
        let lines = self.log.iter().filter(|line| line.starts_with("libnccl"));
        let texts = lines.filter_map(|line| Some(line.split_once(": ")?.1));
        texts.filter(|text| text.trim_start_matches("invalid ").starts_with("LIBNCCL_CPU_")).collect()
    }

    /// Returns whether the CPU backend or the CUDA emulation reports this variable.
    pub(crate) fn rejects(&self, name: &str) -> bool {
        self.rejected_variables().iter().any(|text| text.split(' ').any(|word| word == name))
    }

    pub(crate) fn set_by_environment(&self) -> Vec<&str> {
        let texts = self.log.iter().filter_map(|line| Some(line.split_once("NCCL INFO ")?.1));
        let mut texts: Vec<_> = texts
            .filter(|text| text.starts_with("NCCL_") && text.contains(" set by environment to "))
            .filter(|text| !is_forced(text.split(' ').next().unwrap_or_default()))
            .collect();
        texts.dedup();
        texts
    }
}

/// Returns whether the child has another value of the variable than a job.
pub(crate) fn is_forced(name: &str) -> bool {
    FORCED.iter().any(|(forced, _)| *forced == name)
}

/// Reads the socket address in a unique id. It is at the beginning, or behind 8 bytes of a random number since NCCL 2.16.
fn socket_address(id: &[u8]) -> Option<(IpAddr, u16)> {
    let at = |offset: usize| {
        let address = id.get(offset..offset + 28)?;
        let family = libc::c_int::from(u16::from_ne_bytes(*address.first_chunk()?));
        let port = u16::from_be_bytes([address[2], address[3]]);
        let v4: [u8; 4] = address[4..8].try_into().ok()?;
        let v6: [u8; 16] = address[8..24].try_into().ok()?;
        // The padding and the flow are 0, which a random number before the address is not.
        match family {
            libc::AF_INET if address[8..16] == [0; 8] => Some((Ipv4Addr::from(v4).into(), port)),
            libc::AF_INET6 if v4 == [0; 4] => Some((Ipv6Addr::from(v6).into(), port)),
            _ => None,
        }
    };
    at(0).or_else(|| at(8))
}

#[cfg(test)]
#[path = "../../tests/unit/doctor_probe.rs"]
mod tests;
