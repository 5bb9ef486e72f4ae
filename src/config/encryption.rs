#![allow(unsafe_code)] // Calls into NCCL.

use std::ffi::c_char;
use std::fmt;

use crate::backend::call;
use crate::error::{Error, InvalidArgumentKind, Result};
use crate::nccl::Nccl;
use crate::sys;

/// The encryption of NCCL's TCP connections between processes; see [`Nccl::set_encryption`]. Since NCCL 2.32.3.
#[doc(alias = "ncclEncryptionConfig_t")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encryption<'a> {
    /// No encryption, NCCL's default.
    #[doc(alias = "NCCL_ENCRYPTION_MODE_NONE")]
    None,
    /// TLS with a key that all processes share: at least 32 bytes, none of them zero.
    #[doc(alias = "NCCL_ENCRYPTION_MODE_PSK")]
    PreSharedKey(&'a [u8]),
}

/// Formats the variant, without the key.
impl fmt::Debug for Encryption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::PreSharedKey(_) => "PreSharedKey(..)",
        })
    }
}

impl Nccl {
    /// Sets the encryption of the TCP connections that NCCL opens from now on in this process. Since NCCL 2.32.3.
    ///
    /// Call it in all processes with the same key, before the first [`unique_id`](Self::unique_id) and the first communicator.
    /// Only TCP is encrypted; the other transports (InfiniBand, shared memory and so on) are not. NCCL keeps a copy of the key;
    /// this method overwrites its own copy before it returns.
    ///
    /// ```no_run
    /// use libnccl::{Nccl, config::Encryption};
    ///
    /// let nccl = Nccl::load()?;
    /// let key = std::fs::read("/run/secrets/nccl")?;
    /// nccl.set_encryption(Encryption::PreSharedKey(&key))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the key is too short or has a zero byte; [`Error::Nccl`] if NCCL fails;
    /// [`Error::Unsupported`] if the library is older than NCCL 2.32.3.
    #[doc(alias = "ncclSetEncryption")]
    pub fn set_encryption(&self, encryption: Encryption<'_>) -> Result<()> {
        let mut config = sys::ncclEncryptionConfig_t::initializer();
        let mut key = Key::new(encryption)?;
        if let Some(Key(bytes)) = &mut key {
            config.mode = sys::ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_PSK.0 as i32;
            config.psk = bytes.as_ptr().cast::<c_char>();
        }
        // SAFETY: the config is complete; its key is null or a C string, which NCCL copies.
        unsafe { call!(self.library, ncclSetEncryption(&raw const config)) }.map(drop)
    }
}

/// A key as a C string, which is overwritten with zeros when dropped.
struct Key(Vec<u8>);

impl Key {
    fn new(encryption: Encryption<'_>) -> Result<Option<Self>> {
        /// The minimum length that NCCL accepts, in bytes.
        const MIN_LENGTH: usize = 32;
        let Encryption::PreSharedKey(key) = encryption else { return Ok(None) };
        let wrong = |problem| Err(Error::argument("set_encryption", InvalidArgumentKind::Value, problem));
        if key.len() < MIN_LENGTH {
            return wrong(format!("the key has {} bytes, and needs at least {MIN_LENGTH}", key.len()));
        }
        if let Some(position) = key.iter().position(|byte| *byte == 0) {
            return wrong(format!("byte {position} of the key is zero, which would end it there"));
        }
        Ok(Some(Self([key, &[0]].concat())))
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Without this, the compiler may omit writes to memory that nothing reads.
        std::hint::black_box(&mut self.0);
    }
}
