//! Environment variables: the devices that `CUDA_VISIBLE_DEVICES` selects, and invalid values.

use std::env;
use std::ffi::{CString, c_int};

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DriverError};

use crate::extension::describe;
use crate::work;

crate::tests! {
    variable_set_before_cuda_starts_is_used
    listed_devices_keep_their_identity { CUDA_VISIBLE_DEVICES = "5, 2,64,1" }
    devices_are_listed_by_uuid { CUDA_VISIBLE_DEVICES = "GPU-30303036,GPU-30303030-206c" }
    empty_list_hides_all_devices = no_device_is_found { CUDA_VISIBLE_DEVICES = "" }
    device_listed_twice_hides_all_devices = no_device_is_found { CUDA_VISIBLE_DEVICES = "1,2,1" }
    list_without_a_device_hides_all_devices = no_device_is_found { CUDA_VISIBLE_DEVICES = "2", LIBNCCL_CPU_DEVICES = "2" }
    unusable_findings_file_is_refused = refuse [
        "invalid LIBNCCL_CPU_REPORT \"/no/such/directory/file\"; it must be the path of a file that can be written\n"
    ] { LIBNCCL_CPU_REPORT = "/no/such/directory/file" }
    unknown_finding_name_is_refused = refuse [
        "invalid LIBNCCL_CPU_IGNORE \"raec\"; it must be names of findings, separated by commas: race, free-"
    ] { LIBNCCL_CPU_IGNORE = "raec" }
    unknown_value_of_strict_is_refused = refuse [
        "invalid LIBNCCL_CPU_STRICT \"yes\"; it must be 0 or 1\n"
    ] { LIBNCCL_CPU_STRICT = "yes" }
    unknown_value_of_faults_is_refused = refuse [
        "invalid LIBNCCL_CPU_FAULTS", "it must be off or report"
    ] { LIBNCCL_CPU_FAULTS = "2" }
    device_memory_with_invalid_size_is_refused = refuse [
        "invalid LIBNCCL_CPU_DEVICE_MEMORY \"1.5 apples\"; it must be a number of bytes above 0"
    ] { LIBNCCL_CPU_DEVICE_MEMORY = "1.5 apples" }
    device_without_memory_is_refused = refuse [
        "invalid LIBNCCL_CPU_DEVICE_MEMORY \"0\""
    ] { LIBNCCL_CPU_DEVICE_MEMORY = "0" }
}

fn refuse() {
    assert!(CudaContext::new(0).is_err());
}

/// Checks that a device of the program is the physical one: by UUID and by PCI bus id.
fn assert_is(device: c_int, physical: c_int) {
    let context = CudaContext::new(device as usize).expect("a device");
    let expected = describe(physical).expect("a description");
    assert_eq!(context.uuid().expect("a UUID").bytes.map(|byte| byte as u8), expected.uuid);
    let bus = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    assert_eq!(bus.expect("a number"), physical + 1);
    assert_eq!(by_bus(physical), Ok(device));
}

fn by_bus(physical: c_int) -> Result<c_int, DriverError> {
    let id = CString::new(format!("0000:{:02X}:00.0", physical + 1)).expect("no null byte");
    let mut device = -1;
    // SAFETY: a variable and a C string.
    unsafe { sys::cuDeviceGetByPCIBusId(&raw mut device, id.as_ptr()) }.result().map(|()| device)
}

fn listed_devices_keep_their_identity() {
    result::init().expect("no error");
    assert_eq!(device::get_count(), Ok(2));
    assert_is(0, 5);
    assert_is(1, 2);
    let invalid = Err(DriverError(CUresult::CUDA_ERROR_INVALID_DEVICE));
    assert_eq!(device::get(2), invalid);
    assert_eq!(by_bus(1), invalid);
    // A management library lists all devices, with the memory that this program has of each.
    let free = |physical| describe(physical).expect("a description").free;
    let before: Vec<u64> = (0..8).map(free).collect();
    let _context = work::context(0);
    work::allocate(1000);
    let fallen: Vec<i32> = (0..8).filter(|&physical| free(physical) < before[physical as usize]).collect();
    assert_eq!(fallen, [5]);
}

fn devices_are_listed_by_uuid() {
    result::init().expect("no error");
    assert_eq!(device::get_count(), Ok(2));
    assert_is(0, 6);
    assert_is(1, 0);
}

fn no_device_is_found() {
    assert_eq!(result::init(), Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)));
    assert!(describe(1).is_ok(), "a management library lists all devices");
}

fn variable_set_before_cuda_starts_is_used() {
    // SAFETY: no other thread of this process reads the environment meanwhile.
    let set = |list| unsafe { env::set_var("CUDA_VISIBLE_DEVICES", list) };
    set("3");
    result::init().expect("no error");
    set("1,2");
    result::init().expect("no error");
    assert_eq!(device::get_count(), Ok(1));
    assert_is(0, 3);
}
