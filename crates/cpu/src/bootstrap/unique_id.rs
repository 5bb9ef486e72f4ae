//! The unique id, by which the ranks of a communicator find and authenticate each other.

use std::ffi::c_char;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use libnccl::sys::ncclUniqueId;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::diag::error::{Error, Result};

/// The first bytes of an id, and the version of the bootstrap messages and of the shared memory.
pub(crate) const MAGIC: [u8; 8] = *b"ncclcpu2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UniqueId {
    /// The name of the rendezvous socket.
    pub(crate) public: [u8; 16],
    /// The secret that proves that a rank was given the id.
    pub(crate) secret: [u8; 16],
    scope: HostScope,
}

/// The host and namespaces that ranks have to share to reach each other and to see each other's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HostScope {
    /// The kernel's boot id, which no two running hosts share.
    host: [u8; 36],
    network: u64,
    processes: u64,
}

impl UniqueId {
    pub(crate) fn generate() -> Result<Self> {
        Ok(Self { public: random()?, secret: random()?, scope: HostScope::current()? })
    }

    /// Derives the id of a child communicator without communication: the same arguments give the same id.
    pub(crate) fn derive(&self, purpose: &str, number: u64, ranks: &[usize]) -> Self {
        let word = |index: u8| {
            // Its keys are fixed, so it is the same in all processes.
            let mut hasher = DefaultHasher::new();
            hasher.write(&[index]);
            hasher.write(&self.secret);
            hasher.write(&self.public);
            hasher.write(&number.to_ne_bytes());
            ranks.iter().for_each(|rank| hasher.write(&(*rank as u64).to_ne_bytes()));
            hasher.write(purpose.as_bytes());
            hasher.finish().to_ne_bytes()
        };
        let words = |first: u8| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&word(first));
            bytes[8..].copy_from_slice(&word(first + 1));
            bytes
        };
        Self { public: words(0), secret: words(2), scope: self.scope }
    }

    /// Returns a short form for the log.
    pub(crate) fn short(&self) -> String {
        let number = self.public.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        format!("{number:#x}")
    }

    /// Returns the bytes of name and secret, which identify a communicator among ranks of the same scope.
    pub(crate) fn secret_bytes(&self) -> [u8; Self::SECRET_LENGTH] {
        let mut bytes = [0; Self::SECRET_LENGTH];
        bytes[..16].copy_from_slice(&self.public);
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) const SECRET_LENGTH: usize = 32;

    /// Returns the id of the same scope with the name and secret in `bytes`.
    pub(crate) fn with_secret(&self, mut bytes: &[u8]) -> Self {
        Self { public: read_bytes(&mut bytes), secret: read_bytes(&mut bytes), scope: self.scope }
    }

    /// Returns the id that a caller passes, which has to be of this scope.
    pub(crate) fn new(raw: &ncclUniqueId) -> Result<Self> {
        let mut rest: &[u8] = &raw.internal.map(|byte| byte as u8);
        if read_bytes(&mut rest) != MAGIC {
            return Err(Error::argument(
                "this unique id is not from this version of the CPU implementation's ncclGetUniqueId",
            ));
        }
        let (public, secret) = (read_bytes(&mut rest), read_bytes(&mut rest));
        let scope = HostScope {
            host: read_bytes(&mut rest),
            network: u64::from_ne_bytes(read_bytes(&mut rest)),
            processes: u64::from_ne_bytes(read_bytes(&mut rest)),
        };
        let current = HostScope::current()?;
        if scope.host != current.host {
            return Err(Error::usage(
                "this unique id is from another host: the CPU implementation works on one host only",
            ));
        }
        if scope != current {
            return Err(Error::usage(
                "this unique id is from another network or process namespace (container) of this host: \
                 the CPU implementation's ranks have to share both",
            ));
        }
        Ok(Self { public, secret, scope })
    }

    pub(crate) fn raw(&self) -> ncclUniqueId {
        let HostScope { host, network, processes } = &self.scope;
        let parts: [&[u8]; 6] =
            [&MAGIC, &self.public, &self.secret, host, &network.to_ne_bytes(), &processes.to_ne_bytes()];
        let mut raw = ncclUniqueId::default();
        for (to, from) in raw.internal.iter_mut().zip(parts.iter().copied().flatten()) {
            *to = *from as c_char;
        }
        raw
    }
}

impl HostScope {
    /// Returns the scope of this process, read once, and once more in a forked child.
    fn current() -> Result<Self> {
        static CURRENT: OnceLock<(u32, HostScope)> = OnceLock::new();
        let process = std::process::id();
        match CURRENT.get() {
            Some((known, current)) if *known == process => Ok(*current),
            _ => Self::read().inspect(|current| {
                let _ = CURRENT.set((process, *current));
            }),
        }
    }

    fn read() -> Result<Self> {
        let failed = |error| Error::system("the namespaces of this process cannot be read from /proc", error);
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
        .map_err(|error| Error::system("no random numbers", error))?;
    Ok(bytes)
}

/// Reads the next bytes, 0 where there are no more.
fn read_bytes<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (taken, left) = rest.split_at(N.min(rest.len()));
    *rest = left;
    std::array::from_fn(|index| taken.get(index).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libnccl::sys::ncclResult_t;

    #[test]
    fn id_round_trips_through_its_c_form() {
        let id = UniqueId::generate().unwrap();
        assert_eq!(UniqueId::new(&id.raw()).unwrap(), id);
        assert_ne!(UniqueId::generate().unwrap(), id);
    }

    #[test]
    fn derived_id_depends_on_every_argument() {
        let (id, other) = (UniqueId::generate().unwrap(), UniqueId::generate().unwrap());
        let derived = id.derive("split", 1, &[1, 2]);
        assert_eq!(derived, id.derive("split", 1, &[1, 2]));
        assert_eq!(UniqueId::new(&derived.raw()).unwrap(), derived);
        assert_eq!(other.with_secret(&id.secret_bytes()), id);
        let different = [
            id,
            other.derive("split", 1, &[1, 2]),
            id.derive("shrink", 1, &[1, 2]),
            id.derive("split", 2, &[1, 2]),
            id.derive("split", 1, &[1]),
        ];
        for different in different {
            assert!(derived.public != different.public && derived.secret != different.secret);
        }
    }

    #[test]
    fn id_of_another_host_or_namespace_is_refused() {
        let code = |raw| UniqueId::new(&raw).unwrap_err().code;
        assert_eq!(code(ncclUniqueId::default()), ncclResult_t::ncclInvalidArgument);
        let mut elsewhere = UniqueId::generate().unwrap();
        elsewhere.scope.host[0] ^= 1;
        assert_eq!(code(elsewhere.raw()), ncclResult_t::ncclInvalidUsage);
        let mut contained = UniqueId::generate().unwrap();
        contained.scope.network += 1;
        assert_eq!(code(contained.raw()), ncclResult_t::ncclInvalidUsage);
    }

    #[test]
    fn damaged_id_is_refused_or_decoded_as_it_is() {
        let mut state = 1u64;
        let mut random = || {
            // A linear congruential generator, of which the high bits are good.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize
        };
        let good = UniqueId::generate().unwrap();
        let used = 8 + 16 + 16 + 36 + 8 + 8;
        let (mut refused, mut same, mut others) = (0, 0, 0);
        for _ in 0..10_000 {
            let mut raw = good.raw();
            let index = random() % raw.internal.len();
            match random() % 4 {
                0 => raw.internal[index..].fill(0),
                1 => raw.internal[index] = random() as c_char,
                _ => raw.internal[index] ^= 1 << (random() % 8),
            }
            match UniqueId::new(&raw) {
                Err(error) => {
                    refused += 1;
                    assert!(!error.text.is_empty());
                }
                Ok(id) => {
                    assert_eq!(id.raw().internal[..used], raw.internal[..used]);
                    assert_eq!(id.scope, good.scope);
                    if id == good { same += 1 } else { others += 1 }
                }
            }
        }
        assert!(refused > 1000 && same > 1000 && others > 1000, "{refused} {same} {others}");
    }
}
