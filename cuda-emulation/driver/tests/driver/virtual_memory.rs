//! Memory that programs map at addresses that they have reserved.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::{result, sys};
use sys::CUmemAllocationHandleType as HandleType;
use sys::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS as ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_DEVICE as INVALID_DEVICE,
    CUDA_ERROR_INVALID_VALUE as INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    CUDA_ERROR_OUT_OF_MEMORY as OUT_OF_MEMORY, CUDA_SUCCESS as SUCCESS,
};

use crate::work::{context, nonblocking};

crate::tests! {
    copy_across_mapped_memory_returns_the_data
    unmapped_memory_is_refused_and_can_be_mapped_again
    invalid_virtual_memory_calls_are_refused
    attributes_of_mapped_memory_describe_its_part
    memory_mapped_at_two_addresses_is_the_same
    free_memory_is_restored_after_release_and_unmap
    unordered_work_on_adjacent_mapped_memory_is_not_reported
    race_in_the_second_part_of_mapped_memory_is_reported [
        "race in allocation", "cuMemsetD8Async on stream", "cuMemcpyDtoDAsync_v2 on stream", "reads bytes 0 to 100"
    ]
    race_at_two_addresses_of_the_same_memory_is_reported [
        "race in allocation", "cuMemsetD8Async on stream", "writes bytes 50 to 150", "writes bytes 0 to 100"
    ]
    unmapping_under_work_is_reported [
        "race in allocation", "cuMemsetD8Async on stream", "cuMemUnmap by the host"
    ]
    use_without_access_is_a_fault [
        "fault: cuMemsetD8_v2 writes allocation", "device 0 no such access", "device 1 no such access",
        "device 2 no such access"
    ]
}

/// The granularity.
pub(crate) const PART: usize = 2 << 20;

fn properties(device: i32) -> sys::CUmemAllocationProp {
    let mut properties = std::mem::MaybeUninit::<sys::CUmemAllocationProp>::zeroed();
    let place = properties.as_mut_ptr();
    // SAFETY: zero is a value of all fields but three, which are set.
    unsafe {
        (&raw mut (*place).requestedHandleTypes).write(HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        (&raw mut (*place).type_).write(sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED);
        (&raw mut (*place).location).write(location(device));
        properties.assume_init()
    }
}

fn location(id: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
}

fn create(device: i32, length: usize) -> u64 {
    let mut handle = 0;
    // SAFETY: a variable, and properties that can be read.
    let created = unsafe { sys::cuMemCreate(&raw mut handle, length, &properties(device), 0) };
    assert_eq!(created, SUCCESS);
    handle
}

fn reserve(length: usize) -> u64 {
    let mut address = 0;
    // SAFETY: a variable.
    assert_eq!(unsafe { sys::cuMemAddressReserve(&raw mut address, length, 0, 0, 0) }, SUCCESS);
    address
}

fn map(address: u64, handle: u64) {
    // SAFETY: numbers.
    assert_eq!(unsafe { sys::cuMemMap(address, PART, 0, handle, 0) }, SUCCESS);
}

fn set_access(address: u64, length: usize, device: i32, flags: sys::CUmemAccess_flags) -> sys::CUresult {
    let description = sys::CUmemAccessDesc { location: location(device), flags };
    // SAFETY: a description that can be read.
    unsafe { sys::cuMemSetAccess(address, length, &raw const description, 1) }
}

const READ_WRITE: sys::CUmemAccess_flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// Maps this many parts of a device's memory side by side, with access for the device.
pub(crate) fn mapped(device: i32, parts: usize) -> u64 {
    let address = reserve(parts * PART);
    for part in 0..parts {
        let handle = create(device, PART);
        map(address + (part * PART) as u64, handle);
        // SAFETY: a number.
        assert_eq!(unsafe { sys::cuMemRelease(handle) }, SUCCESS, "what is mapped stays");
    }
    assert_eq!(set_access(address, parts * PART, device, READ_WRITE), SUCCESS);
    address
}

fn copy_across_mapped_memory_returns_the_data() {
    let _context = context(0);
    let address = mapped(0, 3);
    let data = (0..3 * PART).map(|byte| (byte / 7 + byte / PART) as u8).collect::<Vec<_>>();
    let mut back = vec![0; data.len() - 20];
    // SAFETY: the memory is as long, and nothing else uses it.
    unsafe {
        result::memcpy_htod_sync(address, &data).expect("a copy to the device");
        result::memcpy_dtoh_sync(&mut back, address + 10).expect("a copy back");
        assert!(back == data[10..data.len() - 10]);
        result::memset_d8_sync(address + PART as u64 - 5, 9, 10).expect("a fill");
        result::memcpy_dtoh_sync(&mut back, address + 10).expect("a copy back");
        assert_eq!(
            back[PART - 17..PART - 3],
            [&data[PART - 7..PART - 5], &[9; 10], &data[PART + 5..PART + 7]].concat()
        );
        let beyond = result::memcpy_dtoh_sync(&mut back, address + 21);
        assert_eq!(beyond, Err(result::DriverError(INVALID_VALUE)));
        assert_eq!(sys::cuMemFree_v2(address), INVALID_VALUE);
    }
}

fn unmapped_memory_is_refused_and_can_be_mapped_again() {
    let context = context(0);
    let (address, handle) = (reserve(2 * PART), create(0, PART));
    let mut back = [0_u8; 4];
    // SAFETY: the memory is as long, and nothing else uses it.
    unsafe {
        assert_eq!(sys::cuMemsetD8_v2(address, 1, 1), INVALID_VALUE, "reserved");
        assert_eq!(sys::cuMemcpy(address, (&raw const back) as u64, 4), INVALID_VALUE, "reserved");
        map(address, handle);
        assert_eq!(set_access(address, PART, 0, READ_WRITE), SUCCESS);
        result::memset_d8_sync(address, 7, 4).expect("a fill");
        context.synchronize().expect("the end of the fill");
        assert_eq!(sys::cuMemUnmap(address, PART), SUCCESS);
        assert_eq!(sys::cuMemsetD8_v2(address, 1, 1), INVALID_VALUE, "unmapped");
        map(address + PART as u64, handle);
        assert_eq!(set_access(address + PART as u64, PART, 0, READ_WRITE), SUCCESS);
        result::memcpy_dtoh_sync(&mut back, address + PART as u64).expect("a copy back");
        assert_eq!(back, [7; 4]);
        assert_eq!(sys::cuMemAddressFree(address, 2 * PART), INVALID_VALUE, "something is mapped");
        assert_eq!(sys::cuMemUnmap(address + PART as u64, PART), SUCCESS);
        assert_eq!(sys::cuMemAddressFree(address, 2 * PART), SUCCESS);
        assert_eq!(sys::cuMemAddressFree(address, 2 * PART), INVALID_VALUE);
        assert_eq!(sys::cuMemsetD8_v2(address, 1, 1), INVALID_VALUE, "freed");
        assert_eq!(sys::cuMemMap(address, PART, 0, handle, 0), INVALID_VALUE, "freed");
        assert_eq!(sys::cuMemRelease(handle), SUCCESS);
        assert_eq!(sys::cuMemRelease(handle), INVALID_VALUE);
    }
}

fn invalid_virtual_memory_calls_are_refused() {
    let _context = context(0);
    let (address, handle) = (mapped(0, 3), create(0, 2 * PART));
    let (second, free) = (address + PART as u64, reserve(3 * PART));
    let mut out = 0_u64;
    let out = &raw mut out;
    let with = |change: fn(&mut sys::CUmemAllocationProp)| {
        let mut properties = properties(0);
        change(&mut properties);
        properties
    };
    let good = with(|_| ());
    let other_device = with(|properties| properties.location.id = 8);
    let no_type =
        with(|properties| properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_INVALID);
    let no_place =
        with(|properties| properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID);
    let host =
        with(|properties| properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA);
    let windows = with(|properties| properties.requestedHandleTypes = HandleType::CU_MEM_HANDLE_TYPE_WIN32);
    let posix = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let none = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    // SAFETY: non-null pointers can be read and written; refusing the rest is under test.
    let calls = unsafe {
        let create =
            |length, properties: &sys::CUmemAllocationProp| sys::cuMemCreate(out, length, properties, 0);
        let export = |handle, kind, flags| sys::cuMemExportToShareableHandle(out.cast(), handle, kind, flags);
        let import = |file| sys::cuMemImportFromShareableHandle(out, file as *mut c_void, posix);
        let invalid = [
            ("reserve nothing", sys::cuMemAddressReserve(out, 0, 0, 0, 0)),
            ("reserve a part of a page", sys::cuMemAddressReserve(out, PART + 1, 0, 0, 0)),
            ("reserve for an alignment of 3", sys::cuMemAddressReserve(out, PART, 3, 0, 0)),
            ("reserve with flags", sys::cuMemAddressReserve(out, PART, 0, 0, 1)),
            ("reserve without a result", sys::cuMemAddressReserve(ptr::null_mut(), PART, 0, 0, 0)),
            ("free a part", sys::cuMemAddressFree(free, PART)),
            ("free the middle", sys::cuMemAddressFree(free + PART as u64, 2 * PART)),
            ("create nothing", create(0, &good)),
            ("create half of a part", create(PART / 2, &good)),
            ("create without a type", create(PART, &no_type)),
            ("create nowhere", create(PART, &no_place)),
            ("create with flags", sys::cuMemCreate(out, PART, &raw const good, 1)),
            ("create without properties", sys::cuMemCreate(out, PART, ptr::null(), 0)),
            ("map half of a part", sys::cuMemMap(free, PART / 2, 0, handle, 0)),
            ("map at half of a part", sys::cuMemMap(free + PART as u64 / 2, PART, 0, handle, 0)),
            ("map from an offset", sys::cuMemMap(free, PART, PART, handle, 0)),
            ("map with flags", sys::cuMemMap(free, PART, 0, handle, 1)),
            ("map more than there is", sys::cuMemMap(free, 3 * PART, 0, handle, 0)),
            ("map beyond the addresses", sys::cuMemMap(free + 2 * PART as u64, 2 * PART, 0, handle, 0)),
            ("map twice", sys::cuMemMap(address, PART, 0, handle, 0)),
            ("map where nothing is reserved", sys::cuMemMap(PART as u64, PART, 0, handle, 0)),
            ("map what is not there", sys::cuMemMap(free, PART, 0, 12345, 0)),
            ("unmap where nothing is mapped", sys::cuMemUnmap(free, PART)),
            ("unmap more than is mapped", sys::cuMemUnmap(second, 3 * PART)),
            ("unmap half of a part", sys::cuMemUnmap(address, PART / 2)),
            ("access where nothing is mapped", set_access(free, PART, 0, READ_WRITE)),
            ("access to half of a part", set_access(address, PART / 2, 0, READ_WRITE)),
            ("access to more than is mapped", set_access(address, 4 * PART, 0, READ_WRITE)),
            ("access of nobody", sys::cuMemSetAccess(address, PART, ptr::null(), 0)),
            ("which access where nothing is", sys::cuMemGetAccess(out, &location(0), free)),
            ("retain where nothing is mapped", sys::cuMemRetainAllocationHandle(out, free as *mut c_void)),
            ("properties of nothing", sys::cuMemGetAllocationPropertiesFromHandle(out.cast(), 12345)),
            ("export nothing", export(12345, posix, 0)),
            ("export with flags", export(handle, posix, 1)),
            ("export as another handle", export(handle, HandleType::CU_MEM_HANDLE_TYPE_WIN32, 0)),
            ("import a closed file", import(999)),
            ("import standard error", import(2)),
        ];
        let invalid = invalid.map(|(what, found)| (what, found, INVALID_VALUE));
        let others = [
            ("reserve more than there is", sys::cuMemAddressReserve(out, 1 << 60, 0, 0, 0), OUT_OF_MEMORY),
            ("create more than there is", create(1 << 60, &good), OUT_OF_MEMORY),
            ("create on device 8", create(PART, &other_device), INVALID_DEVICE),
            ("create on the host", create(PART, &host), NOT_SUPPORTED),
            ("create for Windows", create(PART, &windows), NOT_SUPPORTED),
            ("access of device 8", set_access(address, PART, 8, READ_WRITE), INVALID_DEVICE),
            ("which access of device 8", sys::cuMemGetAccess(out, &location(8), address), INVALID_DEVICE),
            ("no access", set_access(address, PART, 0, none), SUCCESS),
        ];
        invalid.into_iter().chain(others)
    };
    for (what, found, expected) in calls {
        assert_eq!(found, expected, "{what}");
    }
    // Memory of two parts that was mapped in one call is unmapped as a whole.
    // SAFETY: numbers.
    unsafe {
        assert_eq!(sys::cuMemMap(free, 2 * PART, 0, handle, 0), SUCCESS);
        let halves = [free, free + PART as u64].map(|address| sys::cuMemUnmap(address, PART));
        assert_eq!((halves, sys::cuMemUnmap(free, 2 * PART)), ([INVALID_VALUE; 2], SUCCESS));
    }
}

fn attributes_of_mapped_memory_describe_its_part() {
    use sys::CUpointer_attribute_enum as Attribute;
    let context = context(0);
    let supported = [
        sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    ];
    assert_eq!(supported.map(|attribute| context.attribute(attribute)), [Ok(1), Ok(1)]);
    let address = mapped(2, 2);
    let second = address + PART as u64;
    let attribute = |code, address| {
        let mut value = 0_u64;
        // SAFETY: no attribute has more bytes.
        assert_eq!(unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), code, address) }, SUCCESS);
        value
    };
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, second + 5), 2);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, second + 5), 2);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, second + 5), second);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, second + 5), PART as u64);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_CONTEXT, second), 0, "of no context");
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, second), 1);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, second), 0, "device 0 may do nothing");
    assert_eq!(set_access(second, PART, 0, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ), SUCCESS);
    assert_eq!(attribute(Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, second), 1);
    let access = |device, address| {
        let mut flags = 9;
        // SAFETY: a variable, and a location that can be read.
        assert_eq!(unsafe { sys::cuMemGetAccess(&raw mut flags, &location(device), address) }, SUCCESS);
        flags
    };
    assert_eq!(
        [access(0, address), access(0, second), access(2, second + 5), access(3, second)],
        [0, 1, 3, 0]
    );
    let (mut start, mut length, mut granularity, mut handle) = (0, 0, 0, 0);
    let mut found = properties(7);
    // SAFETY: variables, and properties that can be read.
    unsafe {
        assert_eq!(sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut length, second + 5), SUCCESS);
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        assert_eq!(
            sys::cuMemGetAllocationGranularity(&raw mut granularity, &properties(2), minimum),
            SUCCESS
        );
        assert_eq!(sys::cuMemRetainAllocationHandle(&raw mut handle, (second + 5) as *mut c_void), SUCCESS);
        assert_eq!(sys::cuMemGetAllocationPropertiesFromHandle(&raw mut found, handle), SUCCESS);
    }
    assert_eq!((start, length, granularity, found.location.id), (second, PART, PART, 2));
    assert_eq!(found.requestedHandleTypes, HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/// Memory is mapped at two addresses: by its handle, and by the handle of a file descriptor of it.
fn memory_mapped_at_two_addresses_is_the_same() {
    let context = context(0);
    let (address, handle) = (reserve(3 * PART), create(0, PART));
    let (free, _) = context.mem_get_info().expect("memory");
    let (mut file, mut imported) = (-1, 0);
    let kind = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let mut back = [0_u8; 4];
    // SAFETY: the memory is as long, and nothing else uses it; the file is this function's.
    unsafe {
        let out = (&raw mut file).cast();
        assert_eq!(sys::cuMemExportToShareableHandle(out, handle, kind, 0), SUCCESS);
        let file = OwnedFd::from_raw_fd(file);
        let number = file.as_raw_fd() as usize as *mut c_void;
        assert_eq!(sys::cuMemImportFromShareableHandle(&raw mut imported, number, kind), SUCCESS);
        drop(file);
        let addresses = [0, 1, 2].map(|part| address + (part * PART) as u64);
        addresses.iter().zip([handle, handle, imported]).for_each(|(address, handle)| map(*address, handle));
        assert_eq!(set_access(address, 3 * PART, 0, READ_WRITE), SUCCESS);
        result::memset_d8_sync(address + 8, 7, 3).expect("a fill");
        // A mapping can be removed.
        assert_eq!(sys::cuMemUnmap(address, PART), SUCCESS);
        for other in &addresses[1..] {
            result::memcpy_dtoh_sync(&mut back, other + 8).expect("a copy back");
            assert_eq!(back, [7, 7, 7, 0]);
        }
    }
    assert_eq!(context.mem_get_info().expect("memory").0, free, "it is there once");
}

fn free_memory_is_restored_after_release_and_unmap() {
    let context = context(3);
    let free = || context.mem_get_info().expect("memory").0;
    let before = free();
    let (address, handle) = (reserve(PART), create(3, PART));
    assert_eq!(free(), before - PART);
    map(address, handle);
    assert_eq!(free(), before - PART);
    let mut again = 0;
    // SAFETY: variables and numbers.
    unsafe {
        assert_eq!(sys::cuMemRelease(handle), SUCCESS);
        assert_eq!(free(), before - PART, "it is mapped");
        assert_eq!(sys::cuMemRetainAllocationHandle(&raw mut again, address as *mut c_void), SUCCESS);
        assert_eq!(again, handle);
        assert_eq!(sys::cuMemUnmap(address, PART), SUCCESS);
        assert_eq!(free(), before - PART, "there is a handle");
        assert_eq!(sys::cuMemRelease(handle), SUCCESS);
    }
    assert_eq!(free(), before);
}

fn unordered_work_on_adjacent_mapped_memory_is_not_reported() {
    let context = context(0);
    let (one, two) = (nonblocking(), nonblocking());
    let (address, middle) = (mapped(0, 3), PART + PART / 2);
    // SAFETY: the memory is as long.
    unsafe {
        sys::cuMemsetD8Async(address, 1, middle, one).result().expect("a fill");
        let behind = address + middle as u64;
        sys::cuMemsetD8Async(behind, 2, middle, two).result().expect("a fill");
        // Rows on the left and on the right; one of them spans two parts.
        let (left, right) = (one, two);
        context.synchronize().expect("the end of all");
        sys::cuMemsetD2D8Async(address, 1000, 1, 500, 6000, left).result().expect("rows");
        sys::cuMemsetD2D8Async(address + 500, 1000, 2, 500, 6000, right).result().expect("rows");
    }
    context.synchronize().expect("the end of all");
}

fn race_in_the_second_part_of_mapped_memory_is_reported() {
    let _context = context(0);
    let (one, two) = (nonblocking(), nonblocking());
    let (address, other) = (mapped(0, 2), mapped(0, 1));
    let second = address + PART as u64;
    // SAFETY: the memory is as long; the missing order of the work is under test.
    unsafe {
        sys::cuMemsetD8Async(second - 10, 1, 20, one).result().expect("a fill");
        sys::cuMemcpyDtoDAsync_v2(other, second, 100, two).result().expect("a copy");
    }
}

fn race_at_two_addresses_of_the_same_memory_is_reported() {
    let _context = context(0);
    let (one, two) = (nonblocking(), nonblocking());
    let (address, handle) = (reserve(2 * PART), create(0, PART));
    map(address, handle);
    map(address + PART as u64, handle);
    assert_eq!(set_access(address, 2 * PART, 0, READ_WRITE), SUCCESS);
    // SAFETY: the memory is as long; the missing order of the work is under test.
    unsafe {
        sys::cuMemsetD8Async(address, 1, 100, one).result().expect("a fill");
        sys::cuMemsetD8Async(address + PART as u64 + 50, 1, 100, two).result().expect("a fill");
    }
}

fn unmapping_under_work_is_reported() {
    let context = context(0);
    let stream = context.new_stream().expect("a stream");
    let address = mapped(0, 2);
    // SAFETY: the memory is as long; unmapping during the work is under test.
    unsafe {
        sys::cuMemsetD8Async(address, 1, PART, stream.cu_stream()).result().expect("a fill");
        assert_eq!(sys::cuMemUnmap(address, 2 * PART), SUCCESS);
    }
}

/// Before access is set, by a device that has none, and to read-only memory. The fault stays with its context.
fn use_without_access_is_a_fault() {
    const READ: sys::CUmemAccess_flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
    let contexts = [0, 1, 2].map(context);
    let unset = reserve(2 * PART);
    [unset, unset + PART as u64].iter().for_each(|part| map(*part, create(0, PART)));
    assert_eq!(set_access(unset, PART, 0, READ_WRITE), SUCCESS);
    let read_only = mapped(2, 2);
    assert_eq!(set_access(read_only, 2 * PART, 2, READ), SUCCESS);
    // SAFETY: the memory is as long.
    unsafe { result::memcpy_dtoh_sync(&mut [0_u8; 4], read_only).expect("it may be read") };
    for (context, address) in contexts.iter().zip([unset, mapped(0, 2), read_only]) {
        context.bind_to_thread().expect("a current context");
        // SAFETY: numbers.
        unsafe {
            assert_eq!(sys::cuMemsetD8_v2(address + PART as u64, 1, 10), ILLEGAL_ADDRESS);
            assert_eq!(sys::cuCtxSynchronize(), ILLEGAL_ADDRESS);
        }
    }
}
