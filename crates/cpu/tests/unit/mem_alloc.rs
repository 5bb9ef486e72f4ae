use super::*;
use crate::shm::process::Process;

struct Memory(*mut u8);

impl Memory {
    fn new(size: usize) -> Self {
        Self(allocate(size).unwrap().cast())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: only this test uses the memory.
        unsafe { free(self.0.cast()) }.unwrap();
    }
}

#[test]
fn freed_pages_are_released_while_another_process_maps_them() {
    let memory = Memory::new(10_000);
    let handle = find(memory.0, 10_000).unwrap();
    let mapping = Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
    let there = mapping.range(handle.offset, 10_000).unwrap();
    // SAFETY: 10000 bytes, of this test only.
    unsafe { memory.0.add(9_999).write(7) };
    // SAFETY: as above.
    assert_eq!(unsafe { there.add(9_999).read() }, 7);
    drop(memory);
    // SAFETY: as above; `mapping` keeps the file's size, and its pages are zero again.
    assert_eq!(unsafe { there.add(9_999).read() }, 0);
}

#[test]
fn revoked_memory_keeps_its_bytes_and_is_not_written_by_others() {
    const PAGES: usize = 6;
    let page = rustix::param::page_size();
    let memory = Memory::new(PAGES * page);
    let handle = find(memory.0, PAGES * page).unwrap();
    let mapping = Mapping::open(&Process::current().unwrap(), handle.file).unwrap();
    let there = mapping.range(0, PAGES * page).unwrap().as_ptr();
    let here = |index: usize| memory.0.wrapping_add(index);
    // SAFETY: inside the memory, which only this test uses, here and below.
    let write = |start: *mut u8, index: usize, value| unsafe { start.add(index).write_volatile(value) };
    // SAFETY: as above.
    let read = |start: *mut u8, index: usize| unsafe { start.add(index).read_volatile() };
    (0..PAGES * page).for_each(|index| write(memory.0, index, 1));
    let before = taken();
    // Parts of pages 1 and 2, then of 1 to 4.
    take_back(here(page + 5), page, 0).unwrap();
    assert!(taken() > before);
    write(memory.0, page, 2);
    take_back(here(2 * page - 1), 2 * page + 2, 0).unwrap();
    (0..PAGES * page).for_each(|index| write(there, index, 3));
    let bytes = [0, page, page + 1, 2 * page, 4 * page - 1, 5 * page - 1, 5 * page]
        .map(|index| read(memory.0, index));
    assert_eq!(bytes, [3, 2, 1, 1, 1, 1, 3], "only what was not taken back");
    assert_eq!(find(here(page), 1), None);
    assert_eq!(find(memory.0, PAGES * page), None);
    assert_eq!(find(here(5 * page), page), Some(ShmHandle { offset: 5 * page as u64, ..handle }));
    // Other ranks of a window keep writing to the file.
    let window = window_memory::WindowMemory::new(here(5 * page + 8), 8);
    let refused = take_back(here(5 * page), 1, 0).unwrap_err();
    assert_eq!(refused.text, "some of it is in a window");
    take_back(here(5 * page), 1, 1).unwrap();
    drop(window);
    // Memory that other processes cannot map.
    let own = [0_u8; 10];
    take_back(own.as_ptr(), own.len(), 0).unwrap();
}

#[test]
fn pointer_is_found_only_in_its_allocation() {
    let memory = Memory::new(10_000);
    let whole = find(memory.0, 12_288).unwrap();
    assert_eq!(whole.offset, 0);
    assert_eq!(find(memory.0.wrapping_add(12_287), 1), Some(ShmHandle { offset: 12_287, ..whole }));
    for (offset, length) in [(0, 12_289), (12_287, 2), (0, usize::MAX)] {
        assert_eq!(find(memory.0.wrapping_add(offset), length), None, "{offset}+{length}");
    }
    let other = 0_u8;
    assert_eq!((find(&raw const other, 1), find(ptr::null(), 0)), (None, None));
    // Another test may have been given the address since.
    let freed = memory.0;
    drop(memory);
    assert!(find(freed, 1).is_none_or(|now| now.allocation > whole.allocation));
}
