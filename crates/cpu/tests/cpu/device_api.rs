//! The host functions of the device API: properties, teams, addresses of windows, and the errors of functions that only kernels need.

use std::mem::offset_of;
use std::ptr;

use libnccl::sys::device::{ncclCommProperties_t, ncclDevComm_t, ncclDevCommRequirements_t, ncclTeam_t};
use libnccl::sys::{NCCL_API_MAGIC, NCCL_VERSION_CODE};

use crate::common::{
    ARGUMENT, Comm, Memory, OK, USAGE, alone, assert_last_error, assert_sum, init, on_threads,
};

macro_rules! device {
    ($name:ident($($argument:expr),*)) => {{
        let function = libnccl_cpu::DEVICE_TABLE.$name.expect(stringify!($name));
        // SAFETY: the tests pass what the header requires, or what is checked before it is used.
        #[allow(unused_unsafe, clippy::macro_metavars_in_unsafe)]
        unsafe { function($($argument),*) }
    }};
}

#[test]
fn properties_of_older_version_fill_only_its_fields() {
    const LENGTH: usize = size_of::<ncclCommProperties_t>();
    let comm = init(1)[0];
    for (version, end) in [
        (22_902, offset_of!(ncclCommProperties_t, multimemSupport) + 2),
        (22_907, offset_of!(ncclCommProperties_t, commHash)),
        (23_003, offset_of!(ncclCommProperties_t, commHash)),
        (23_102, offset_of!(ncclCommProperties_t, cftSupport)),
        (23_203, LENGTH),
    ] {
        let mut memory = [u64::MAX; LENGTH / 8];
        let props: *mut ncclCommProperties_t = memory.as_mut_ptr().cast();
        // SAFETY: the memory has the size and alignment of the struct.
        unsafe {
            ((*props).magic, (*props).version) = (NCCL_API_MAGIC, version);
            assert_eq!(device!(ncclCommQueryProperties(comm.0, props)), OK);
            assert_eq!(((*props).rank, (*props).nRanks), (0, 1));
        }
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(bytes[end..].iter().all(|byte| *byte == 0xff), "{version}: {bytes:x?}");
        assert_eq!(bytes[offset_of!(ncclCommProperties_t, multimemSupport)], 0);
    }
    comm.destroy();
}

#[test]
fn properties_of_unknown_versions_are_refused() {
    let comm = init(1)[0];
    let full = ncclCommProperties_t::initializer(NCCL_VERSION_CODE);
    for (magic, version) in
        [(0, NCCL_VERSION_CODE), (NCCL_API_MAGIC, NCCL_VERSION_CODE + 1), (NCCL_API_MAGIC, 0)]
    {
        let given = ncclCommProperties_t { magic, version, ..full };
        let mut props = given;
        assert_eq!((device!(ncclCommQueryProperties(comm.0, &raw mut props)), props), (USAGE, given));
    }
    assert_eq!(device!(ncclCommQueryProperties(comm.0, ptr::null_mut())), ARGUMENT);
    comm.destroy();
}

/// All ranks are on one host, so they form one LSA team, and a rail has one rank.
#[test]
fn teams_cover_one_host() {
    let _alone = alone();
    let comms = init(3);
    let team = |team: ncclTeam_t| (team.nRanks, team.rank, team.stride);
    for (rank, Comm(comm)) in comms.iter().enumerate() {
        assert_eq!(team(device!(ncclTeamWorld(*comm))), (3, rank as i32, 1));
        assert_eq!(team(device!(ncclTeamLsa(*comm))), (3, rank as i32, 1));
        assert_eq!(team(device!(ncclTeamRail(*comm))), (1, 0, 3));
    }
    // An invalid communicator has no team.
    let none = ptr::null_mut();
    assert_eq!(team(device!(ncclTeamWorld(none))), (0, 0, 0));
    assert_last_error("the communicator is NULL");
    assert_eq!([team(device!(ncclTeamLsa(none))), team(device!(ncclTeamRail(none)))], [(0, 0, 0); 2]);
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn window_has_the_address_of_each_peers_part() {
    const COUNT: usize = 4096;
    let _alone = alone();
    let comms = init(3);
    on_threads(3, |rank| {
        let (Comm(comm), memory, mut window) = (comms[rank], Memory::new(COUNT), ptr::null_mut());
        memory.elements().fill(rank as i32 + 7);
        let (place, mut address) = (memory.start.cast(), ptr::null_mut());
        assert_eq!(nccl!(ncclCommWindowRegister(comm, place, memory.bytes(), &mut window, 1)), OK);
        for peer in 0..3 {
            assert_eq!(device!(ncclGetPeerDevicePointer(window, 4 * COUNT - 4, peer, &mut address)), OK);
            // SAFETY: the last element of the peer's part, which no rank writes.
            assert_eq!(unsafe { address.cast::<i32>().read() }, peer + 7);
        }
        assert_eq!(device!(ncclGetPeerDevicePointer(window, 0, rank as i32, &mut address)), OK);
        assert_eq!(address, place);
        let invalid = [
            device!(ncclGetPeerDevicePointer(window, 0, 3, &mut address)),
            device!(ncclGetPeerDevicePointer(window, 0, 0, ptr::null_mut())),
            device!(ncclGetPeerDevicePointer(window, 4 * COUNT, 0, &mut address)),
        ];
        assert_eq!(invalid, [ARGUMENT; 3]);
        assert_last_error("invalid offset 16384: the window of rank");
        // There is no multicast.
        assert_eq!(device!(ncclGetLsaMultimemDevicePointer(window, 0, &mut address)), OK);
        assert!(address.is_null());
        // No rank deregisters its part before all ranks have read it.
        assert_sum(comm, 3);
        assert_eq!(nccl!(ncclCommWindowDeregister(comm, window)), OK);
        assert_eq!(device!(ncclGetPeerDevicePointer(window, 0, 0, &mut address)), ARGUMENT);
        assert_last_error("is not a window of this process: it was deregistered");
    });
    comms.into_iter().for_each(Comm::destroy);
}

#[test]
fn kernel_only_functions_are_errors() {
    let _alone = alone();
    let (comm, mut address) = (init(1)[0], ptr::null_mut());
    let requirements = ncclDevCommRequirements_t::initializer(NCCL_VERSION_CODE);
    let mut made = std::mem::MaybeUninit::<ncclDevComm_t>::zeroed();
    assert_eq!(device!(ncclDevCommCreate(comm.0, ptr::null(), made.as_mut_ptr())), ARGUMENT);
    assert_eq!(device!(ncclDevCommCreate(comm.0, &raw const requirements, made.as_mut_ptr())), USAGE);
    assert_last_error("is for kernels, and the CPU backend runs none: see deviceApiSupport");
    assert_eq!(device!(ncclDevCommDestroy(comm.0, made.as_ptr())), USAGE);
    assert_last_error("there is no device communicator to destroy");
    assert_eq!(device!(ncclDevCommDestroy(ptr::null_mut(), made.as_ptr())), ARGUMENT);
    assert_eq!(device!(ncclTeamCftMultimem(comm.0)).nRanks, 0);
    assert_last_error(
        "ncclTeamCftMultimem is for kernels, and the CPU backend runs none: see deviceApiSupport",
    );
    assert_eq!(device!(ncclTeamRankToWorld(comm.0, device!(ncclTeamWorld(comm.0)), 0)), -1);
    assert_eq!(device!(ncclLLA2ACalcSlots(16, 4)), -1);
    assert_eq!(device!(ncclGetLsaDevicePointer(ptr::null_mut(), 0, 0, &mut address)), ARGUMENT);
    assert_last_error("ncclGetLsaDevicePointer is for kernels");
    comm.destroy();
}
