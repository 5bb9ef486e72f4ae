//! Memory and copies.

use std::fs;
use std::mem::MaybeUninit;

use cudarc::driver::{CudaContext, result, sys};

use crate::work;

crate::tests! {
    copy_to_a_device_and_back_returns_the_data
    memory_beyond_an_allocation_and_freed_memory_are_refused
    allocations_share_mappings
    memory_of_a_new_allocation_is_zero
    pointer_attributes_distinguish_device_host_and_unknown
    all_devices_have_a_name_and_at_most_half_of_the_hosts_memory
    memory_of_any_kind_beyond_the_limit_of_a_device_is_refused [
        "device 1 has no room for 65537 bytes: 65536 of 65536 are free; LIBNCCL_CPU_DEVICE_MEMORY=BYTES"
    ] { LIBNCCL_CPU_DEVICE_MEMORY = "64K" }
}

fn memory_of_any_kind_beyond_the_limit_of_a_device_is_refused() {
    const LIMIT: usize = 64 << 10;
    let out_of_memory = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let context = work::context(1);
    let stream = context.default_stream();
    let mut pool = MaybeUninit::uninit();
    // SAFETY: a variable that can be written, and a device that is there.
    let pool =
        unsafe { sys::cuDeviceGetDefaultMemPool(pool.as_mut_ptr(), 1).result().map(|()| pool.assume_init()) };
    let pool = pool.expect("the default pool");
    // SAFETY: none of it is used; each is freed once, by the kind's function.
    unsafe {
        type Allocate<'a> = &'a dyn Fn(&mut u64, usize) -> sys::CUresult;
        type Free<'a> = &'a dyn Fn(u64) -> sys::CUresult;
        let free = |address| sys::cuMemFree_v2(address);
        let kinds: [(&str, Allocate<'_>, Free<'_>); 4] = [
            ("a device's", &|out, length| sys::cuMemAlloc_v2(out, length), &free),
            ("managed", &|out, length| sys::cuMemAllocManaged(out, length, 1), &free),
            (
                "in stream order",
                &|out, length| sys::cuMemAllocAsync(out, length, stream.cu_stream()),
                &|address| sys::cuMemFreeAsync(address, stream.cu_stream()),
            ),
            (
                "a pool's",
                &|out, length| sys::cuMemAllocFromPoolAsync(out, length, pool, stream.cu_stream()),
                &free,
            ),
        ];
        for (kind, allocate, free) in kinds {
            let (mut most, mut more) = (0, 0);
            assert_eq!(context.mem_get_info(), Ok((LIMIT, LIMIT)), "{kind}");
            assert_eq!(allocate(&mut more, LIMIT + 1), out_of_memory, "{kind}");
            assert_eq!(allocate(&mut most, LIMIT - 100), sys::CUresult::CUDA_SUCCESS, "{kind}");
            assert_eq!(context.mem_get_info(), Ok((100, LIMIT)), "{kind}");
            for (other, allocate, _) in kinds {
                assert_eq!(allocate(&mut more, 101), out_of_memory, "{other} memory after {kind}");
            }
            assert_eq!(free(most), sys::CUresult::CUDA_SUCCESS, "{kind}");
        }
        let mut total = 0;
        assert_eq!(sys::cuDeviceTotalMem_v2(&raw mut total, 1), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(total, LIMIT);
        // The host's own memory is none of the device's.
        let pinned = result::malloc_host(2 * LIMIT, 0).expect("pinned memory");
        result::free_host(pinned).expect("a free");
    }
}

fn all_devices_have_a_name_and_at_most_half_of_the_hosts_memory() {
    let information = fs::read_to_string("/proc/meminfo").expect("the host's memory");
    let total = information.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok());
    let (host, mut devices) = (1024 * total.expect("a number"), 0);
    assert_eq!(CudaContext::device_count(), Ok(8));
    assert!(CudaContext::new(8).is_err());
    for device in 0..8 {
        let context = CudaContext::new(device).expect("a device");
        assert_eq!(context.name().as_deref(), Ok("libnccl CUDA emulation"), "device {device}");
        let (free, total) = context.mem_get_info().expect("memory");
        assert!(free <= total, "{free} of {total}");
        devices += total;
    }
    assert!((1..=host / 2).contains(&devices), "{devices} of {host}");
}

fn copy_to_a_device_and_back_returns_the_data() {
    let context = CudaContext::new(0).expect("device 0");
    for stream in
        [context.default_stream(), context.per_thread_stream(), context.new_stream().expect("a stream")]
    {
        for length in [0, 1, 1000, 100_000] {
            let data = (0..length).collect::<Vec<u32>>();
            let device = stream.clone_htod(&data).expect("a copy to the device");
            let copy = stream.clone_dtod(&device).expect("a copy on the device");
            assert_eq!(stream.clone_dtoh(&copy).expect("a copy back"), data);
        }
    }
}

fn memory_beyond_an_allocation_and_freed_memory_are_refused() {
    let _context = work::context(0);
    let invalid = Err(result::DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE));
    let memory = work::allocate(100);
    // SAFETY: the copies have their data; refusing them and the second free is under test.
    unsafe {
        assert_eq!(result::memcpy_htod_sync(memory + 1, &[0_u8; 100]), invalid);
        assert_eq!(result::memcpy_htod_sync(memory + 1, &[0_u8; 99]), Ok(()));
        assert_eq!(result::memset_d8_sync(memory, 1, 101), invalid);
        assert_eq!(result::memset_d8_sync(0x1000, 1, 1), invalid);
        assert_eq!(result::free_sync(memory + 1), invalid);
        assert_eq!(result::free_sync(memory), Ok(()));
        assert_eq!(result::free_sync(memory), invalid);
        assert_eq!(result::memset_d8_sync(memory, 0, 1), invalid);
        assert_eq!(result::free_sync(0), Ok(()));
    }
}

fn allocations_share_mappings() {
    let context = work::context(0);
    let mappings = || std::fs::read_to_string("/proc/self/maps").expect("the mappings").lines().count();
    let before = mappings();
    let all = (0..10_000).map(|_| work::allocate(256)).collect::<Vec<_>>();
    assert!(mappings() < before + 100, "{before} mappings, then {}", mappings());
    let (free, total) = context.mem_get_info().expect("memory");
    for parity in [0, 1] {
        for &memory in all.iter().skip(parity).step_by(2) {
            work::free(memory);
        }
        assert!(mappings() < before + 100, "{before} mappings, then {}", mappings());
    }
    assert_eq!(context.mem_get_info(), Ok((free + 256 * all.len(), total)));
}

fn memory_of_a_new_allocation_is_zero() {
    let stream = CudaContext::new(0).expect("device 0").default_stream();
    for length in [1, 5000, 1 << 20, (1 << 20) + 1] {
        for _ in 0..20 {
            // SAFETY: zeros are valid elements.
            let mut memory = unsafe { stream.alloc::<u8>(length) }.expect("memory");
            let bytes = stream.clone_dtoh(&memory).expect("a copy back");
            assert!(bytes == vec![0; length], "{length}");
            stream.memcpy_htod(&vec![7; length], &mut memory).expect("a copy");
            assert_eq!(stream.clone_dtoh(&memory).expect("a copy back"), vec![7; length]);
        }
    }
}

fn pointer_attributes_distinguish_device_host_and_unknown() {
    use sys::CUpointer_attribute_enum::{
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as TYPE,
    };
    let _context = work::context(2);
    let address = work::allocate(100);
    let attribute = |code, address| {
        let mut value = 0_i32;
        // SAFETY: both attributes are an `int`.
        let result = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), code, address) };
        result.result().map(|()| value)
    };
    assert_eq!([attribute(ORDINAL, address + 99), attribute(TYPE, address)], [Ok(2), Ok(2)]);
    let local = 0_u8;
    assert!(attribute(TYPE, (&raw const local) as u64).is_err());
    // SAFETY: it lives until the process ends.
    let pinned = unsafe { result::malloc_host(10, 0) }.expect("pinned memory");
    assert_eq!(attribute(TYPE, pinned as u64), Ok(1));
}
