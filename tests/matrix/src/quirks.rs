#![allow(unsafe_code)] // Calls NCCL in ways that the facade prevents.
//! Traps: calls that crash or hang NCCL, or leave state behind, and that the facade prevents.
//!
//! Each runs in a separate process, which prints the code of every call for as long as it lives.

use std::ffi::c_void;
use std::ptr;

use libnccl::{Nccl, sys};

type Calls = fn(&sys::Functions) -> Option<()>;

/// The quirks: `None` if the library lacks the function.
pub(crate) const QUIRKS: [(&str, Calls); 9] = [
    ("second-id", second_id),
    ("garbage-slot", garbage_slot),
    ("open-group", open_group),
    ("null-split", null_split),
    ("null-shrink", null_shrink),
    ("null-operator", null_operator),
    ("null-operator-destroy", null_operator_destroy),
    ("zeroed-count", zeroed_count),
    ("zeroed-destroy", zeroed_destroy),
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

/// Requests two ids. The first request fails: `NCCL_SOCKET_IFNAME` names no interface.
fn second_id(functions: &sys::Functions) -> Option<()> {
    let get = functions.ncclGetUniqueId?;
    let mut id = sys::ncclUniqueId::default();
    for _ in 0..2 {
        // SAFETY: a place for an id.
        print_code(unsafe { get(&raw mut id) });
    }
    Some(())
}

/// Initializes into a slot that contains a dangling address.
fn garbage_slot(functions: &sys::Functions) -> Option<()> {
    let mut comm = ptr::without_provenance_mut(0x5a5a_5a5a_5a5a_5a58);
    init(functions, &raw mut comm)
}

/// Ends a group that was never started, after a failed initialization.
fn open_group(functions: &sys::Functions) -> Option<()> {
    let mut comm = ptr::null_mut();
    init(functions, &raw mut comm)?;
    let end = functions.ncclGroupEnd?;
    // SAFETY: takes nothing.
    print_code(unsafe { end() });
    Some(())
}

fn init(functions: &sys::Functions, slot: *mut sys::ncclComm_t) -> Option<()> {
    let init = functions.ncclCommInitRankConfig?;
    let id = sys::ncclUniqueId::default();
    // Versions before 2.17 require one or the other.
    let mut config = sys::ncclConfig_t { blocking: 1, ..sys::ncclConfig_t::initializer() };
    // SAFETY: arguments as NCCL documents them, and a slot that it promises only to write; where it reads the slot, the
    // process ends here.
    print_code(unsafe { init(slot, 1, id, 0, &raw mut config) });
    Some(())
}

fn null_split(functions: &sys::Functions) -> Option<()> {
    let (split, mut new) = (functions.ncclCommSplit?, ptr::null_mut());
    // SAFETY: the quirk tests whether NCCL checks its argument; where it does not, the process ends here.
    print_code(unsafe { split(ptr::null_mut(), 0, 0, &raw mut new, ptr::null_mut()) });
    Some(())
}

fn null_shrink(functions: &sys::Functions) -> Option<()> {
    let (shrink, mut new, mut excluded) = (functions.ncclCommShrink?, ptr::null_mut(), [0]);
    let (excluded, flags) = (excluded.as_mut_ptr(), sys::NCCL_SHRINK_DEFAULT as i32);
    // SAFETY: as in `null_split`.
    print_code(unsafe { shrink(ptr::null_mut(), excluded, 1, &raw mut new, ptr::null_mut(), flags) });
    Some(())
}

fn null_operator(functions: &sys::Functions) -> Option<()> {
    let (create, mut op, mut scalar) = (functions.ncclRedOpCreatePreMulSum?, sys::ncclRedOp_t(0), 1.0_f32);
    let scalar = (&raw mut scalar).cast::<c_void>();
    let (float, here) =
        (sys::ncclDataType_t::ncclFloat32, sys::ncclScalarResidence_t::ncclScalarHostImmediate);
    // SAFETY: as in `null_split`.
    print_code(unsafe { create(&raw mut op, scalar, float, here, ptr::null_mut()) });
    Some(())
}

fn null_operator_destroy(functions: &sys::Functions) -> Option<()> {
    let destroy = functions.ncclRedOpDestroy?;
    // SAFETY: as in `null_split`.
    print_code(unsafe { destroy(sys::ncclRedOp_t(5), ptr::null_mut()) });
    Some(())
}

/// Returns a false communicator: zeroed memory, larger than NCCL's own struct.
fn zeroed() -> sys::ncclComm_t {
    Box::leak(vec![0_u64; 1 << 20].into_boxed_slice()).as_mut_ptr().cast()
}

fn zeroed_count(functions: &sys::Functions) -> Option<()> {
    let (count, mut ranks) = (functions.ncclCommCount?, 0);
    // SAFETY: as in `null_split`.
    print_code(unsafe { count(zeroed(), &raw mut ranks) });
    Some(())
}

fn zeroed_destroy(functions: &sys::Functions) -> Option<()> {
    let destroy = functions.ncclCommDestroy?;
    // SAFETY: as in `null_split`.
    print_code(unsafe { destroy(zeroed()) });
    Some(())
}
