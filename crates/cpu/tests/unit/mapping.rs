use libnccl::sys::ncclResult_t;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

fn number(file: impl AsFd) -> u32 {
    file.as_fd().as_raw_fd().unsigned_abs()
}

fn open_error(file: u32) -> String {
    let error = Mapping::open(&Process::current().unwrap(), file).unwrap_err();
    assert_eq!(error.code, ncclResult_t::ncclRemoteError);
    error.text
}

#[test]
fn range_outside_the_mapping_is_none() {
    let (mapping, _file) = Mapping::shared(8192).unwrap();
    assert_eq!(mapping.range(0, 8192), Some(mapping.start()));
    assert_eq!(mapping.range(8191, 1).unwrap().addr().get(), mapping.start().addr().get() + 8191);
    for (offset, length) in [(0, 8193), (8191, 2), (8193, 0), (u64::MAX, 1), (1, usize::MAX)] {
        assert_eq!(mapping.range(offset, length), None, "{offset}+{length}");
    }
}

#[test]
fn shared_file_is_sealed_and_close_on_exec() {
    let (_mapping, file) = Mapping::shared(8192).unwrap();
    assert_eq!(ftruncate(&file, 4096), Err(Errno::PERM));
    assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn open_of_another_kind_of_file_names_it() {
    let regular = std::fs::File::open("/proc/self/exe").unwrap();
    let program = std::env::current_exe().unwrap();
    let (pipe, _other_end) = std::io::pipe().unwrap();
    let loose = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&loose, 8192).unwrap();
    let empty = memfd_create("empty", MemfdFlags::ALLOW_SEALING).unwrap();
    fcntl_add_seals(&empty, SealFlags::SHRINK).unwrap();
    for (file, part) in [
        (number(&regular), format!(" is {}, not anonymous memory", program.display()).as_str()),
        (number(&pipe), " is pipe:["),
        (number(&loose), " is /memfd:loose (deleted), which can shrink"),
        (number(&empty), "which is empty"),
        (i32::MAX as u32, "has no file descriptor 2147483647"),
    ] {
        let text = open_error(file);
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn open_of_a_reused_pid_is_refused() {
    let (_mapping, file) = Mapping::shared(8192).unwrap();
    let current = Process::current().unwrap();
    let before = Process { identity: current.identity - 1, ..current };
    let error = Mapping::open(&before, number(&file)).unwrap_err();
    assert_eq!(error.text, format!("process {} has ended, and its memory with it", current.pid));
}

#[test]
fn open_of_an_ended_process_is_refused() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::from_pid(child.id().into()).unwrap();
    let has_ended = || Mapping::open(&process, 1_000).unwrap_err().text.contains("has ended");
    assert!(!has_ended(), "it runs");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_ended());
}

#[test]
fn first_byte_without_memory_is_found_in_any_page() {
    let page = rustix::param::page_size();
    let (pages, hole) = (600, 300);
    let mapping = Mapping::private(pages * page).unwrap();
    let start = mapping.start.as_ptr();
    let at = |page_index: usize| start.addr() + page_index * page;
    assert_eq!(first_unmapped(at(0), pages * page), None);
    // SAFETY: an unused page of the mapping, which is unmapped with the rest.
    unsafe { munmap(start.add(hole * page).cast(), page).unwrap() };
    assert_eq!(first_unmapped(at(0) + 5, hole * page + 1), Some(hole * page - 5));
    assert_eq!(first_unmapped(at(0), hole * page), None);
    assert_eq!(first_unmapped(at(hole) + 7, 1), Some(0));
    assert_eq!(first_unmapped(at(hole + 1), page), None);
    assert_eq!(first_unmapped(at(hole), 0), None);
}
