//! The unique id: how the ranks of a communicator find each other and know each other.

use std::ffi::c_char;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use libnccl::sys::ncclUniqueId;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::failure::{Failure, Result};

/// Also the version of what ranks say to each other and of what they share.
pub(crate) const MAGIC: [u8; 8] = *b"ncclcpu2";

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

    /// The id of a communicator made of this one's, without a word between the ranks: all who say the same
    /// have the same.
    pub(crate) fn derive(&self, purpose: &str, number: u64, ranks: &[usize]) -> Self {
        let word = |index: u8| {
            // Its keys are fixed, so all processes get the same from it.
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
        Self { public: words(0), secret: words(2), place: self.place }
    }

    /// The name, short enough for the log.
    pub(crate) fn short(&self) -> String {
        let number = self.public.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        format!("{number:#x}")
    }

    /// The two parts that matter to ranks who know to be in one place, and the way back.
    pub(crate) fn parts(&self) -> [u8; Self::PARTS] {
        let mut parts = [0; Self::PARTS];
        parts[..16].copy_from_slice(&self.public);
        parts[16..].copy_from_slice(&self.secret);
        parts
    }

    pub(crate) const PARTS: usize = 32;

    pub(crate) fn with_parts(&self, mut parts: &[u8]) -> Self {
        Self { public: take(&mut parts), secret: take(&mut parts), place: self.place }
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
    /// Where this process is, looked up once. A process that forks has a child that looks for itself.
    fn here() -> Result<Self> {
        static HERE: OnceLock<(u32, Place)> = OnceLock::new();
        let process = std::process::id();
        match HERE.get() {
            Some((known, here)) if *known == process => Ok(*here),
            _ => Self::look().inspect(|here| {
                let _ = HERE.set((process, *here));
            }),
        }
    }

    fn look() -> Result<Self> {
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
    fn derived_ids_differ_by_all_they_come_from() {
        let (id, other) = (UniqueId::generate().unwrap(), UniqueId::generate().unwrap());
        let derived = id.derive("split", 1, &[1, 2]);
        assert_eq!(derived, id.derive("split", 1, &[1, 2]));
        assert_eq!(UniqueId::new(&derived.raw()).unwrap(), derived);
        assert_eq!(other.with_parts(&id.parts()), id);
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

    /// A damaged id is refused, or it is taken for exactly what its bytes say, as far as they say anything.
    #[test]
    fn a_damaged_id_is_refused_or_another_one() {
        let mut state = 1u64;
        let mut random = || {
            // A linear congruential generator, of which the high bits are good.
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize
        };
        let good = UniqueId::generate().unwrap();
        let said = 8 + 16 + 16 + 36 + 8 + 8;
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
                Err(failure) => {
                    refused += 1;
                    assert!(!failure.text.is_empty());
                }
                Ok(id) => {
                    assert_eq!(id.raw().internal[..said], raw.internal[..said]);
                    assert_eq!(id.place, good.place);
                    if id == good { same += 1 } else { others += 1 }
                }
            }
        }
        assert!(refused > 1000 && same > 1000 && others > 1000, "{refused} {same} {others}");
    }
}
