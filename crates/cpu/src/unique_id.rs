//! The unique id: how the ranks of a communicator find each other and know each other.

use std::ffi::c_char;
use std::os::unix::fs::MetadataExt;

use libnccl::sys::ncclUniqueId;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::failure::{Failure, Result};

/// Also the version of what ranks say to each other and of what they share.
pub(crate) const MAGIC: [u8; 8] = *b"ncclcpu1";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UniqueId {
    /// The name of the meeting point.
    pub(crate) public: [u8; 16],
    /// What only those know who were given the id.
    pub(crate) secret: [u8; 16],
    place: Place,
}

/// Where ranks have to be to reach each other and to see each other's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// The kernel's boot id, which no two running hosts share.
    host: [u8; 36],
    network: u64,
    processes: u64,
}

impl UniqueId {
    pub(crate) fn generate() -> Result<Self> {
        Ok(Self { public: random()?, secret: random()?, place: Place::here()? })
    }

    /// An id that a caller passes, which has to be for here.
    pub(crate) fn new(raw: &ncclUniqueId) -> Result<Self> {
        let mut rest: &[u8] = &raw.internal.map(|byte| byte as u8);
        if take(&mut rest) != MAGIC {
            return Err(Failure::argument(
                "this unique id is not from this version of the CPU implementation's ncclGetUniqueId",
            ));
        }
        let (public, secret) = (take(&mut rest), take(&mut rest));
        let place = Place {
            host: take(&mut rest),
            network: u64::from_ne_bytes(take(&mut rest)),
            processes: u64::from_ne_bytes(take(&mut rest)),
        };
        let here = Place::here()?;
        if place.host != here.host {
            return Err(Failure::usage(
                "this unique id is from another host: the CPU implementation works on one host only",
            ));
        }
        if place != here {
            return Err(Failure::usage(
                "this unique id is from another network or process namespace (container) of this host: \
                 the CPU implementation's ranks have to share both",
            ));
        }
        Ok(Self { public, secret, place })
    }

    pub(crate) fn raw(&self) -> ncclUniqueId {
        let Place { host, network, processes } = &self.place;
        let parts: [&[u8]; 6] =
            [&MAGIC, &self.public, &self.secret, host, &network.to_ne_bytes(), &processes.to_ne_bytes()];
        let mut raw = ncclUniqueId::default();
        for (to, from) in raw.internal.iter_mut().zip(parts.iter().copied().flatten()) {
            *to = *from as c_char;
        }
        raw
    }
}

impl Place {
    fn here() -> Result<Self> {
        let failed = |error| Failure::system("/proc does not tell where this process runs", error);
        let boot_id = std::fs::read("/proc/sys/kernel/random/boot_id").map_err(failed)?;
        let namespace = |name| std::fs::metadata(format!("/proc/self/ns/{name}")).map(|file| file.ino());
        Ok(Self {
            host: std::array::from_fn(|index| boot_id.get(index).copied().unwrap_or(0)),
            network: namespace("net").map_err(failed)?,
            processes: namespace("pid").map_err(failed)?,
        })
    }
}

fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))
        .map_err(|error| Failure::system("no random numbers", error))?;
    Ok(bytes)
}

/// The next bytes, 0 where there are no more.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (taken, left) = rest.split_at(N.min(rest.len()));
    *rest = left;
    std::array::from_fn(|index| taken.get(index).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libnccl::sys::ncclResult_t;

    #[test]
    fn an_id_survives_the_way_through_c() {
        let id = UniqueId::generate().unwrap();
        assert_eq!(UniqueId::new(&id.raw()).unwrap(), id);
        assert_ne!(UniqueId::generate().unwrap(), id);
    }

    #[test]
    fn a_foreign_id_is_told_apart() {
        let code = |raw| UniqueId::new(&raw).unwrap_err().code;
        assert_eq!(code(ncclUniqueId::default()), ncclResult_t::ncclInvalidArgument);
        let mut elsewhere = UniqueId::generate().unwrap();
        elsewhere.place.host[0] ^= 1;
        assert_eq!(code(elsewhere.raw()), ncclResult_t::ncclInvalidUsage);
        let mut contained = UniqueId::generate().unwrap();
        contained.place.network += 1;
        assert_eq!(code(contained.raw()), ncclResult_t::ncclInvalidUsage);
    }
}
