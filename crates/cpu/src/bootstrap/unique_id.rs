//! The unique id, which the ranks of a communicator use to find and authenticate each other.

use std::ffi::{OsStr, OsString, c_char};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use libnccl::internal::environment::variable;
use libnccl::observer::CommunicatorId;
use libnccl::sys::ncclUniqueId;
use rustix::io::retry_on_intr;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::diag::debug::{self, Subsystem};
use crate::diag::error::{Error, Result};

/// The first bytes of an id: the version of the rendezvous messages and of the shared memory layout.
pub(crate) const MAGIC: [u8; 8] = *b"ncclcpu7";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UniqueId {
    pub(crate) public: [u8; 16],
    /// The secret that proves that a rank has the id.
    pub(crate) secret: [u8; 16],
    scope: Scope,
    /// Set if the id is derived from an address. Other users may be able to guess it.
    pub(crate) is_of_address: bool,
    /// NCCL's `commHash`. Stays the same if a communicator replaces the secret.
    pub(crate) hash: CommunicatorId,
}

/// The scope that ranks must share to reach each other and to observe each other's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scope {
    host: [u8; 36],
    /// The network namespace and the PID namespace.
    namespaces: [[u8; 8]; 2],
}

impl UniqueId {
    /// Returns the id for the address in `NCCL_COMM_ID`, which is the same for all ranks, or a new id if the variable is not set.
    pub(crate) fn create() -> Result<Self> {
        let Some(text) = comm_id() else { return Self::generate() };
        debug::info(Subsystem::Environment, || {
            format!("NCCL_COMM_ID set by environment to {}", text.to_string_lossy())
        });
        Self::at(local_address(&text)?)
    }

    pub(crate) fn generate() -> Result<Self> {
        let scope = current_scope()?;
        Ok(Self::from_parts(random()?, random()?, scope, false))
    }

    fn at(address: SocketAddr) -> Result<Self> {
        let scope = current_scope()?;
        let none = Self::from_parts([0; 16], [0; 16], scope, true);
        let id = none.derive(&format!("NCCL_COMM_ID={address}"), geteuid().as_raw().into(), &[]);
        Ok(Self::from_parts(id.public, id.secret, scope, true))
    }

    pub(super) const SOCKET_PREFIX: &str = "libnccl-cpu-";

    pub(super) fn socket_name(bytes: &[u8; 16]) -> String {
        bytes.iter().fold(Self::SOCKET_PREFIX.into(), |name, byte| format!("{name}{byte:02x}"))
    }

    /// Returns a file name for the id and the network namespace, within which abstract socket names are unique.
    pub(super) fn address_name(&self) -> String {
        format!("{}-{}", Self::socket_name(&self.public), u64::from_ne_bytes(self.scope.namespaces[0]))
    }

    /// Derives the id of a child communicator without communication: the same arguments give the same id.
    pub(crate) fn derive(&self, purpose: &str, number: u64, ranks: &[usize]) -> Self {
        let ranks: Vec<u8> = ranks.iter().flat_map(|rank| (*rank as u64).to_le_bytes()).collect();
        let (number, purpose) = (number.to_le_bytes(), purpose.as_bytes());
        let hash =
            |part: u8| fnv1a(&[&[part], &self.secret, &self.public, &number, &ranks, purpose]).to_le_bytes();
        Self::from_parts(hash(0), hash(1), self.scope, false)
    }

    fn from_parts(public: [u8; 16], secret: [u8; 16], scope: Scope, is_of_address: bool) -> Self {
        let mut id = Self { public, secret, scope, is_of_address, hash: CommunicatorId::of_hash(0) };
        id.hash = CommunicatorId::of_unique_id(&libnccl::UniqueId::from_c_chars(id.raw().internal));
        id
    }

    /// Returns the public bytes and the secret, which identify a communicator among ranks of the same scope.
    pub(crate) fn secret_bytes(&self) -> [u8; Self::SECRET_LENGTH] {
        let mut bytes = [0; Self::SECRET_LENGTH];
        bytes[..16].copy_from_slice(&self.public);
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) const SECRET_LENGTH: usize = 32;

    pub(crate) fn with_secret(&self, mut bytes: &[u8]) -> Self {
        let (public, secret) = (take(&mut bytes), take(&mut bytes));
        Self::from_parts(public, secret, self.scope, false)
    }

    /// Decodes and checks the id that a caller passed. The id must be from this scope.
    pub(crate) fn new(raw: &ncclUniqueId) -> Result<Self> {
        let mut rest: &[u8] = &raw.internal.map(|byte| byte as u8);
        let magic = take(&mut rest);
        let (public, secret) = (take(&mut rest), take(&mut rest));
        let scope = Scope { host: take(&mut rest), namespaces: [take(&mut rest), take(&mut rest)] };
        let id = Self::from_parts(public, secret, scope, take(&mut rest) == [1]);
        let written = id.raw().internal;
        // If the rest matches the correct first bytes, only the first bytes are damaged.
        if magic != MAGIC && written[MAGIC.len()..] != raw.internal[MAGIC.len()..] {
            return Err(Error::argument(
                "this unique id is not from this version of the CPU backend's ncclGetUniqueId",
            ));
        }
        if written != raw.internal {
            return Err(Error::argument(format!(
                "this unique id is damaged, as its checksum shows: pass all of its {} bytes on unchanged; they are no \
                 text, may be 0, and need not be UTF-8",
                written.len()
            )));
        }
        let current = current_scope()?;
        if scope.host != current.host {
            return Err(Error::usage(
                "this unique id is from another host: the CPU backend works on one host only",
            ));
        }
        if scope != current {
            return Err(Error::usage(
                "this unique id is from another network or process namespace (container) of this host: \
                 the CPU backend's ranks have to share both",
            ));
        }
        Ok(id)
    }

    /// Returns the bytes for C: the fields, zeros, and a checksum of all preceding bytes.
    pub(crate) fn raw(&self) -> ncclUniqueId {
        let is_of_address = [u8::from(self.is_of_address)];
        let Scope { host, namespaces } = &self.scope;
        let parts: [&[u8]; 6] =
            [&MAGIC, &self.public, &self.secret, host, namespaces.as_flattened(), &is_of_address];
        let mut bytes = [0; size_of::<ncclUniqueId>()];
        bytes.iter_mut().zip(parts.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
        let (fields, checksum) = bytes.split_at_mut(size_of::<ncclUniqueId>() - size_of::<u128>());
        checksum.copy_from_slice(&fnv1a(&[fields]).to_le_bytes());
        ncclUniqueId { internal: bytes.map(|byte| byte as c_char) }
    }
}

/// Returns the scope of this process. Cached, except in a forked child.
fn current_scope() -> Result<Scope> {
    static CURRENT: OnceLock<(u32, Scope)> = OnceLock::new();
    let process = std::process::id();
    if let Some((known, current)) = CURRENT.get()
        && *known == process
    {
        return Ok(*current);
    }
    let failed = |error| Error::system("the namespaces of this process cannot be read from /proc", error);
    let boot_id = std::fs::read("/proc/sys/kernel/random/boot_id").map_err(failed)?;
    // Not `/proc/self`: it refers to the first thread, which has no namespaces once it has exited.
    let namespace = |name| {
        let file = std::fs::metadata(format!("/proc/thread-self/ns/{name}")).map_err(failed)?;
        Ok::<_, Error>(file.ino().to_ne_bytes())
    };
    let scope = Scope { host: take(&mut &boot_id[..]), namespaces: [namespace("net")?, namespace("pid")?] };
    let _ = CURRENT.set((process, scope));
    Ok(scope)
}

pub(crate) fn comm_id() -> Option<OsString> {
    variable("NCCL_COMM_ID")
}

/// Parses an address of this host in the formats of `NCCL_COMM_ID`.
fn local_address(text: &OsStr) -> Result<SocketAddr> {
    let shown = text.to_string_lossy();
    let addresses =
        shown.to_socket_addrs().map(|found| found.filter(|address| address.port() != 0).collect());
    let addresses: Vec<SocketAddr> = addresses.unwrap_or_default();
    if addresses.is_empty() {
        return Err(Error::argument(format!(
            "invalid NCCL_COMM_ID {shown:?}: expected <ipv4>:<port>, [<ipv6>]:<port> or <hostname>:<port>"
        )));
    }
    // Binding to any port succeeds if the host has the address.
    let is_local = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
    addresses.into_iter().find(is_local).ok_or_else(|| {
        Error::usage(format!(
            "NCCL_COMM_ID {shown:?} is no address of this host: the CPU backend works on one host only"
        ))
    })
}

/// Returns the 128-bit FNV-1a hash of all parts, which is the same in all builds. Not cryptographic.
pub(crate) fn fnv1a(parts: &[&[u8]]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    let bytes = parts.iter().copied().flatten();
    bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

pub(super) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))
        .map_err(|error| Error::system("no random numbers", error))?;
    Ok(bytes)
}

/// Takes the next `N` bytes of `rest`, or zeros if there are too few.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (taken, left) = rest.split_first_chunk().unwrap_or((&[0; N], &[]));
    *rest = left;
    *taken
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn derived_id_is_the_same_in_every_build() {
        let scope = current_scope().unwrap();
        let id = UniqueId::from_parts([1; 16], [2; 16], scope, true);
        let derived = id.derive("split", 3, &[4, 5]);
        assert!(!derived.is_of_address);
        let numbers = [derived.public, derived.secret].map(u128::from_le_bytes);
        assert_eq!(
            numbers,
            [0x330c_480e_6960_39de_9242_6783_ee43_9d7b, 0x9746_161d_9e2a_a2c4_edbf_d4cc_4586_5a26]
        );
    }

    #[test]
    fn id_of_an_address_depends_on_it_alone() {
        let at = |port| UniqueId::at(([127, 0, 0, 1], port).into()).unwrap();
        assert_eq!(at(1), at(1));
        assert_eq!(UniqueId::new(&at(1).raw()).unwrap(), at(1));
        assert!(at(1).public != at(2).public && at(1).secret != at(2).secret);
    }

    #[test]
    fn id_of_another_host_or_namespace_is_refused_as_that() {
        let text = |raw| UniqueId::new(&raw).unwrap_err().text;
        let mut elsewhere = UniqueId::generate().unwrap();
        elsewhere.scope.host[0] ^= 1;
        assert!(text(elsewhere.raw()).contains("another host"));
        let mut contained = UniqueId::generate().unwrap();
        contained.scope.namespaces[0][0] ^= 1;
        assert!(text(contained.raw()).contains("another network or process namespace"));
    }
}
