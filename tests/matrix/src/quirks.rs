#![allow(unsafe_code)] // Calls NCCL in ways that the facade prevents.
//! Traps: calls that crash or hang NCCL, or leave state behind, and that the facade prevents.
//!
//! Each runs in a separate process, which prints the code of every call for as long as it lives.

use std::ffi::c_void;
use std::ptr;

use libnccl::{Nccl, sys};

type Calls = fn(&sys::Functions) -> Option<()>;

// SAFETY, for all calls below: their arguments are as NCCL documents them, or are what the quirk tests NCCL for, which ends the process
// where NCCL does not check them.

/// The quirks: `None` if the library lacks the function.
pub(crate) const QUIRKS: [(&str, Calls); 9] = [
    // The first request fails: `NCCL_SOCKET_IFNAME` names no interface.
    ("second-id", |functions| {
        let (get, mut id) = (functions.ncclGetUniqueId?, sys::ncclUniqueId::default());
        // SAFETY: see above.
        (0..2).for_each(|_| print_code(unsafe { get(&raw mut id) }));
        Some(())
    }),
    // Initializes into a slot that contains a dangling address.
    ("garbage-slot", |functions| init(functions, ptr::without_provenance_mut(0x5a5a_5a5a_5a5a_5a58))),
    // Ends a group that was never started, after a failed initialization.
    ("open-group", |functions| {
        init(functions, ptr::null_mut())?;
        let end = functions.ncclGroupEnd?;
        // SAFETY: see above.
        print_code(unsafe { end() });
        Some(())
    }),
    ("null-split", |functions| {
        let (split, mut new) = (functions.ncclCommSplit?, ptr::null_mut());
        // SAFETY: see above.
        print_code(unsafe { split(ptr::null_mut(), 0, 0, &raw mut new, ptr::null_mut()) });
        Some(())
    }),
    ("null-shrink", |functions| {
        let (shrink, mut new, mut excluded) = (functions.ncclCommShrink?, ptr::null_mut(), [0]);
        let (excluded, flags) = (excluded.as_mut_ptr(), sys::NCCL_SHRINK_DEFAULT as i32);
        // SAFETY: see above.
        print_code(unsafe { shrink(ptr::null_mut(), excluded, 1, &raw mut new, ptr::null_mut(), flags) });
        Some(())
    }),
    ("null-operator", |functions| {
        let (create, mut op, mut scalar) =
            (functions.ncclRedOpCreatePreMulSum?, sys::ncclRedOp_t(0), 1.0_f32);
        let (scalar, float) = ((&raw mut scalar).cast::<c_void>(), sys::ncclDataType_t::ncclFloat32);
        let here = sys::ncclScalarResidence_t::ncclScalarHostImmediate;
        // SAFETY: see above.
        print_code(unsafe { create(&raw mut op, scalar, float, here, ptr::null_mut()) });
        Some(())
    }),
    ("null-operator-destroy", |functions| {
        let destroy = functions.ncclRedOpDestroy?;
        // SAFETY: see above.
        print_code(unsafe { destroy(sys::ncclRedOp_t(5), ptr::null_mut()) });
        Some(())
    }),
    ("zeroed-count", |functions| {
        let (count, mut ranks) = (functions.ncclCommCount?, 0);
        // SAFETY: see above.
        print_code(unsafe { count(zeroed(), &raw mut ranks) });
        Some(())
    }),
    ("zeroed-destroy", |functions| {
        let destroy = functions.ncclCommDestroy?;
        // SAFETY: see above.
        print_code(unsafe { destroy(zeroed()) });
        Some(())
    }),
];

pub(crate) fn run(nccl: &Nccl, name: &str) -> Result<(), String> {
    let (_, calls) = QUIRKS.iter().find(|quirk| quirk.0 == name).ok_or(format!("unknown quirk {name:?}"))?;
    if calls(nccl.as_raw()).is_none() {
        println!("-");
    }
    Ok(())
}

fn print_code(code: sys::ncclResult_t) {
    println!("{}", code.0);
}

/// Initializes a communicator into a slot with this content.
fn init(functions: &sys::Functions, mut comm: sys::ncclComm_t) -> Option<()> {
    let init = functions.ncclCommInitRankConfig?;
    let id = sys::ncclUniqueId::default();
    // Versions before 2.17 require one or the other.
    let mut config = sys::ncclConfig_t { blocking: 1, ..sys::ncclConfig_t::initializer() };
    // SAFETY: see above; NCCL promises only to write the slot.
    print_code(unsafe { init(&raw mut comm, 1, id, 0, &raw mut config) });
    Some(())
}

/// Returns a false communicator: zeroed memory, larger than NCCL's own struct.
fn zeroed() -> sys::ncclComm_t {
    Box::leak(vec![0_u64; 1 << 20].into_boxed_slice()).as_mut_ptr().cast()
}
